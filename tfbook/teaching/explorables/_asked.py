"""What each figure asks, and one thing to try: its card says both before the controls."""

import html

# A question that one control, moved once or twice, answers; then which control that is.
ASKED = {
    "alignment_viewer": (
        "Does the translator read the source from left to right?",
        "Follow the target words one after the other, then one source word.",
    ),
    "attention_steps": (
        "What makes one key win over the others?",
        "Move one number of the query until another token has the largest weight.",
    ),
    "byte_pairs": (
        "How many merges until a frequent word is one token?",
        "Apply merges, first singly, then all of them.",
    ),
    "cache_growth": (
        "At what length does the cache weigh as much as the model?",
        "Move the length, then the heads of keys and values.",
    ),
    "compute_budget": (
        "Does the best model grow as fast as the budget?",
        "Raise the FLOPs tenfold and read the best size and the tokens.",
    ),
    "continuous_batching": (
        "Who waits for the longest answer?",
        "Fill the batch continuously, then make all answers equally long.",
    ),
    "cost_calculator": (
        "From which length on do scores and sums cost more than the rest of the layers?",
        "Double the context and see which bar of a token doubles and which stay.",
    ),
    "debugging_dashboard": (
        "Which curve gives the fault away?",
        "Look for the first curve that leaves the healthy one; then name the fault.",
    ),
    "delta_rule": (
        "When does a second write spoil the first?",
        "Turn the second key toward the first and read how far off that is; change the rule.",
    ),
    "encoding_wavelengths": (
        "Which clocks tell neighbours apart, and which far places?",
        "Move the position by one, then by forty, and watch the dials.",
    ),
    "expert_routing": (
        "How many tokens are lost when one expert is preferred?",
        "Lower the capacity, then choose with a bias.",
    ),
    "float_bits": (
        "What does a format give up for its reach?",
        "Keep the number and change the format; read the error and the largest number.",
    ),
    "head_viewer": (
        "What does this head look at?",
        "Point at a few tokens, then take another head.",
    ),
    "induction_head": (
        "How can two heads continue a text they have never seen?",
        "Switch off the head of layer 0 and see what the second still finds.",
    ),
    "live_model": (
        "Which part of the model can be spared?",
        "Switch off one head or network and read the next character's probabilities.",
    ),
    "live_training": (
        "At which learning rate does it stop learning?",
        "Start the training and raise the rate while it runs.",
    ),
    "live_translator": (
        "Do more beams make a better translation?",
        "Translate with one beam and with four, then change the length penalty.",
    ),
    "next_token_sampling": (
        "Which tokens does a cut remove, and who gets their share?",
        "Raise the temperature, then lower top-p until only sensible tokens are left.",
    ),
    "one_average": (
        "How small can the error get?",
        "Move the weight to one side, then the number behind the average.",
    ),
    "optimizer_paths": (
        "At which rate does a path begin to jump, and which way?",
        "Raise the learning rate, then take another optimizer.",
    ),
    "patching_grid": (
        "Where does the model keep what decides its answer?",
        "Choose the last token, then move one layer at a time until its share jumps.",
    ),
    "pipeline_schedule": (
        "What shortens the waiting, and what does it cost in memory?",
        "Add micro-batches, then take the other schedule.",
    ),
    "quantisation_error": (
        "Why does one large weight spoil the others?",
        "Let fewer weights share a scale and watch the share that becomes 0.",
    ),
    "relative_bias_shapes": (
        "Which distances does a head still see?",
        "Take another head, then another scheme, and read where half of the weight lies.",
    ),
    "rollout_stepper": (
        "How much of each token is still its own after the last layer?",
        "Move the layer and read what is left; then follow another token.",
    ),
    "roofline": (
        "How many rows keep the arithmetic busy?",
        "Raise the rows until the point leaves the slope, then change the format.",
    ),
    "rope_rotation": (
        "What changes the score: the positions or their gap?",
        "Move both positions together, then one alone.",
    ),
    "scan_tree": (
        "Which way needs fewer levels, and which fewer joins?",
        "Do the levels one by one, then take another way.",
    ),
    "schedule_designer": (
        "How much of the highest rate is left half-way?",
        "Move the step to the middle, then take another schedule.",
    ),
    "shape_tracer": (
        "Which part grows with the square of the length, and which of the width?",
        "Double the length and see which bars grow; then double the width.",
    ),
    "soft_lookup_plane": (
        "Where do soft and hard lookup differ most?",
        "Drag the query between two keys, then lower the temperature.",
    ),
    "softmax_temperature": (
        "How large does the largest weight get, divided or not?",
        "Switch the division on, then move the dimension.",
    ),
    "sparsity_designer": (
        "After how many layers has the last token met the first?",
        "Widen the window or give the pattern a stride.",
    ),
    "stepper": (
        "What does the next step do?",
        "Say it first, then press Next.",
    ),
    "training_planner": (
        "Which change makes the model fit and costs least time?",
        "Raise the ZeRO stage by one, then split the layers instead.",
    ),
}  # fmt: skip


def asked_lines(name: str) -> str:
    """Return the question of a figure and what to try as HTML, or nothing if it is a question."""
    if name not in ASKED:
        return ""
    question, trial = (html.escape(text, quote=False) for text in ASKED[name])
    return f'<p class="tfx-ask"><strong>{question}</strong><span> Try: {trial}</span></p>'
