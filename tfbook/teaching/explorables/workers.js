// Who does the work of a model that runs in the page, and where its weights come from.

const PATIENCE = 3000; // ms until the page does the work itself

/** A worker where the host allows one; elsewhere the page does the work itself, in slices. `make(tell)`
    gives a servant, a function that takes requests and answers through `tell`; the worker, which runs
    `source`, has made one of its own. `hear` is called with each answer. */
export function hire(source, make, hear) {
  return new Promise((go) => {
    const here = () => go({ where: "page", tell: make(hear), end() {} });
    if (typeof Worker === "undefined" || !source) return here();
    try {
      const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
      const worker = new Worker(address, { type: "module" });
      const timer = setTimeout(() => (worker.terminate(), here()), PATIENCE);
      worker.onerror = (event) => {
        event.preventDefault();
        clearTimeout(timer);
        here();
      };
      worker.onmessage = ({ data }) => {
        if (data.kind !== "here") return hear(data);
        clearTimeout(timer);
        go({ where: "worker", tell: (request) => worker.postMessage(request), end: () => worker.terminate() });
      };
    } catch {
      here();
    }
  });
}

/** The weights of a name, from a script beside the one that brought this module. */
export function fetchWeights(module, name) {
  return new Promise((resolve, reject) => {
    if (window.tfbookWeights?.[name]) return resolve(window.tfbookWeights[name]);
    const beside = document.querySelector(`script[src*="explorables/${module}.js"]`).src;
    const script = document.createElement("script");
    script.src = new URL(`../models/${name}.js`, beside);
    script.onload = () => resolve(window.tfbookWeights[name]);
    script.onerror = () => (script.remove(), reject(new Error(`${name}.js did not load`)));
    document.head.append(script);
  });
}

/** In JupyterLab Python brings the weights, as `file` among the data. */
export function handedOver(model) {
  return new Promise((go) => {
    const look = () => {
      if (!model.get("data").file) return;
      model.off("change:data", look);
      go(model.get("data").file);
    };
    model.on("change:data", look);
    look();
  });
}

/** A pause that takes place once so many milliseconds of work are over: what waits has its turn. */
export function slices(milliseconds) {
  let since = performance.now();
  return async () => {
    if (performance.now() - since <= milliseconds) return;
    await new Promise((go) => {
      const { port1, port2 } = new MessageChannel();
      port1.onmessage = () => (port1.close(), go());
      port2.postMessage(null);
    });
    since = performance.now();
  };
}
