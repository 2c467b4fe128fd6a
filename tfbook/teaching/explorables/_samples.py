"""A few weights of MiniLM-L6, rounded to bfloat16, for a figure of quantisation.

Its file holds them in full precision; that of SmolLM2 holds 4 bits, whose grid one would measure.
all-MiniLM-L6-v2: Apache-2.0, [wang2020minilm].
"""

import torch
from jaxtyping import Float
from torch import Tensor

COLUMNS = 128
# Which rows and columns of which matrix: (name in the model, first row, first column).
PLACES = {
    "ordinary": ("stack.blocks.2.mixer.v_proj.weight", 0, 128),
    "outlier": ("stack.blocks.2.ffn.up_proj.weight", 1004, 0),
}
# Four rows of each, 16 bits a number.
CODES = {
    "ordinary": (
        "3d86bd613e03bc30bcb43dd7bbca3c013db03d45bc913b243d5e3da83d15bc37bd5c3d133bbe3cddbb69bc81"
        "be5abd34bd583d0ebcc6bda13d43bba23c95bd34bdb2bdafbcf43cf5bd0f3d7d3c0d3c27bbfbbe2fbcdf3b73"
        "bdcebc4bbd98bdb73b913b0f3d943c5c3d97bb5dbcf7bddabd51bdeeba59be01bd023d0d3d1d3cc7bd13bc85"
        "3d4d3d1c3a413cbf3b9abe073babbd69bdb63e18bd5ebd953c4fbda8bd81bd1fbd4fbd1fbc32bca83cd03d0e"
        "3c2dbd913a59bc3f3d46bca23dc63c3abd8d3c5a3d32bc2c3d88bd1abd3e3d7d3d86bd4d3d22bdc43d7dbd26"
        "bcf03ccb3d853d9bbe10b9ff3d4b3bffbd1dbb333e06bd7e3d86bd1e3d843d3d3ca93d25bd08bcea3d6cbd18"
        "3cba3c2a3d313a81bd9fbd32bdaf3d35bd14bd0bbd9cbcc7bcba3cce3d113db63b03bcb6ba3abbd1bdc7bca4"
        "3d4a3de93dc2bd053cc4bcbdbda93dd7bd58bd763bc93c943d07bbd43e03ba183d3a3d81bd413c963bb63dac"
        "3daabc10bded3ba13cf1bdc439e63e033da7bc6fbd09bca53c45bc5cbd0a3d3e3c9abd343b35bda53c4a3d50"
        "bd5e3bfb3ccabcb73ccabdcd3d13bdc63db43d25bd9f3ae8bdd2bd1a3cccbd6e3db3bd1c3d57bb06bc503d86"
        "3c1b3c973db93be93d40bd843d18bcfebd5a3b97bccabd97bc19bd6a3be03ddebce63e883d31bd293d33bd31"
        "bdc33c4fbd7d3cbe3bf4bc313dc43ca73ce8bd24bd4e3dbe3dcf3dacbdd93d77bd3b3dacbd533e513c1d3c6a"
        "3d96bd36bd353c5d3da53c4d3d513d54bda9bc9f3da23dc9be033cc83de3bd8abd753dadbe093dcf3c13bd2a"
        "3cccbce4bce93c8cbc6d3c543dedbca6bc633e293d16bc8b3ceb3cc23bfdbdcb3c373d36bbee3b44bd2abd8b"
        "bd4ebcd43bc2bd95bd503d55bdb23b42bd81bcc13c17bbf03cedbd98bd9b3b923cea3d56bc1b3e363c9bbc4d"
        "bca2bd933c443cd23d85bd2d3c8bbc66bd93bb273da73da0bb463a7d3c9a3bfb3cd13df13d69bc963bebbcfa"
        "3d1abd54bb223dcbbca3bc1fbb62bc97bcd43cc93d1bbde4bdaf3de3bce1bd83bc363d23bdb13d423d6b3c91"
        "ba1c3d09bd49bd92bb3d3ca8bd1b3c0e3c8e3de3bd41bd3abc2a3dd7bc27bd7e3c983d65bc1e39543d843d38"
        "bc6b3c33bd98bdbcbc2f3ccbbda93b5fbdcbbd08be1abd1cbe21bbba3e013d213b83bc58bde83dc6bd973e0a"
        "3db23ca5bc4d3b34bd253daebc54bd913cf13d85bc23bd9c3d43bbc0bd07bc883c7a3e12bc4c3c523d4f3ce9"
        "3d7cbd84bd55bd8c3c9f3b95bcbabd583d0a3d8f3d20bd80bd4a3990bcf3bd28bc11bbf9bb1dbd4dbc3c3d24"
        "3c9cbd9839fe3df4bd853c6bbd7d38863c1a3d423e20bdd5bbe9bc213d823baabccc3d1e3aef3cb83d9abd75"
        "bc883da1bbed3d3ebd35bd333c24bca7bc783df03d0dbc96bcb1bd743bac3ca9bcbfba9dbcf63d663d39bc74"
        "bcffbba5bd923d8e3e0bbc55"
    ),
    "outlier": (
        "3db13b553d24bd4e3db9bccdbd4ebd273d173dc23cb1bd56bdfcbdde3d63bd903d03bc053d743e043cea3d4f"
        "3e003b693d1dbd453d6cbd6d3d0abd28bd37bc65ba3e3d3dbe18bd9b3d37bdf53d11bde03d8e3c86bda73d0b"
        "bc673d8abd3f3c82bd8e3d18bda63d933cc6bd8fbc4abcc23d933b2f3d14bd883d54bd443d15bd07bc333c5a"
        "bc68bd92bd74bc983cec3bb83d08be1abdac3d85bd8fbcdcbc55ba733d083d293d393d6fbd1b3d193cd6bc2f"
        "bd83bda0bc5cbd86bc14bd42be84bd4dbddfbd56bbe63f1f3d91bc4d3bc23d3ebd39bc5b3ccfbd613d8fbdd2"
        "bc91bd553ca5bd9cbda53c4ebdea3cd03b1b3d083cb3b8623e03bc173dcbbdfdbdf6bd89bd2bbd41bdcdbbd0"
        "bdf63d893e02bd7a3e0c3dfd3df4bca6bde33e00bd64bd073de53ccd3d46bd7e3d363d913e193bba3ce7bca7"
        "3dd8bdf83d3f3d0a3c8c3d3fbd24bd6ebddb3d82bddc3d823df13e2c3e15bc8d3dadbd04bcdb3d443c3f3c1b"
        "3d8fbc78bcfdbdc73d65bc483df83c2e3d81bd55bc0ebd723c5e3d9ebd983da33d47bd89bdc9bd56bc6d3dfb"
        "bc0cbe17be123ca0bd06bc60be06bdfbbe093dfbbdfcbc0fbe01bdd03b1a3e2bbda9bd783d983dac3d6c3b3c"
        "3d0b3d83bdc63ca93e41bdb13ca3bbaa3bf53d1ebd6bbd4abd1b3de7bd543bd03cb4bd763dc03d033d04bc3a"
        "bcea3d65bdb73df43da23acb3dc53d0f3d13bd92bd26bd82bc69bd0bbd423cda3ca8bcb1bd333dc53bfb3cf2"
        "3d7cbd613d70bc56be083d1b3d65bdab3d0dbbdc3cab3d04bba4bd603ddb3dbf3c08bd643bd2bdd3bc443d1b"
        "bd953d093d643dc13d643c85bd4fbd2a3bbd3dec3d6a3c8ebd333c5e3dee3c763b4dbdf6bdaf3e32bd9c3ca3"
        "bda43ccd3cd6bd9dbe03bd223c55bdb3bd703abcbc5bbd3e3d26bb9e3d1dbd243d0d3c18bcc4bc253ca5bcc1"
        "be0cbb8c3d883d0dbd0ebc653d613bedbdddbce7bd543dc23da2bd86bd9d3d29bc923b77bb5c3d4cbcc4bb33"
        "bc76bcc13dac3b873c25bdac3d443d5bbd82bd8f3e013d27bc95bd003b7e3cc73cdb3c0d3d02bdbbbce03df3"
        "3d07bd893d46bce63e033da83d70bc5a3c323cfa3d173d88bd863df9bd993d10bd263d4e3d02bdd43ccb3d10"
        "bbfd3cd9bd593d903dec3c78bdaebc163d68bda2bd333dff3d41bd1e3c18bd01bd00bb29be2a3cbc3d983d83"
        "3dd73cc73e033c753dba3dd1be013dbabe063dbd3ced3a4b3c11bbebbbb9bd6abd493c9c3d1d3d3f3bb9b906"
        "3df93d89bd253b51bcd13d933d3dbdb63d68bd9b3d1b3cbdbc603de3bd8c3bf5bda73d643b96ba223b47bd21"
        "3cdc3d8a3dcabcb23d023c5fbd783cec3d8fbb92bca03c9bb9a63d543e03bc9abb3b3c9c3d86bd4ebcb0bd62"
        "3c68be17bcfd3d9d3e12bbba3d81bc603bdc3d203d563db5bb6ebd9abbc8bdd13d863ab83da33d3f3d313cae"
        "3d4a3d6e3ca13ca9bc1c3d82"
    ),
}


def sample(name: str) -> Float[Tensor, "4 128"]:
    """Return the weights, float32."""
    numbers = [int(CODES[name][i : i + 4], 16) << 16 for i in range(0, len(CODES[name]), 4)]
    signed = [number - 2**32 * (number >= 2**31) for number in numbers]
    return torch.tensor(signed, dtype=torch.int32).view(torch.float32).view(-1, COLUMNS)
