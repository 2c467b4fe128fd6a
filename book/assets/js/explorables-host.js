// Gives explorables a life without a kernel. A module is a string in _static/explorables/NAME.js (from
// a disk pages load no modules), imported from a blob, with a model as anywidget's. A figure wakes
// near the screen, one in each pause; one above all sections is fetched at once. If it fails, the text stays.
(() => {
  const base = new URL("explorables/", document.currentScript.src.replace(/_static\/.*/, "_static/"));
  const loading = {};

  const load = (name) =>
    (loading[name] ??= new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.src = new URL(`${name}.js`, base);
      script.onload = () => {
        const source = window.tfbookModules[name];
        const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
        import(url).then((m) => resolve(m.default), reject);
      };
      script.onerror = () => reject(new Error(`${name}.js did not load`));
      document.head.append(script);
    }));

  const modelOf = (values) => {
    const heard = {};
    return {
      get: (key) => values[key],
      set(key, value) {
        if (values[key] === value) return;
        values[key] = value;
        [...(heard[`change:${key}`] || [])].forEach((f) => f());
      },
      save_changes() {},
      on: (event, f) => void (heard[event] ??= []).push(f),
      off: (event, f) => void (heard[event] = (heard[event] || []).filter((g) => g !== f)),
    };
  };

  const wake = async (host) => {
    const text = host.querySelector(".tfx-text");
    const el = document.createElement("div");
    try {
      const values = JSON.parse(host.querySelector("script").textContent);
      const module = await load(host.dataset.module);
      module.render({ model: modelOf(values), el });
      text.before(el);
      text.hidden = true;
      host.dataset.alive = "";
    } catch (error) {
      console.error("explorable", host.dataset.module, error);
    }
  };

  const waiting = [];
  const pause = window.requestIdleCallback || ((go) => setTimeout(go));
  const next = async () => {
    const host = waiting[0];
    await wake(host);
    waiting.shift();
    if (waiting.length) pause(next, { timeout: 300 });
  };
  const near = new IntersectionObserver(
    (entries) => entries.filter((entry) => entry.isIntersecting).forEach(({ target }) => call(target)),
    { rootMargin: "800px 0px" },
  );
  const call = (host) => {
    if (host.dataset.called !== undefined) return;
    host.dataset.called = "";
    near.unobserve(host);
    if (waiting.push(host) === 1) pause(next, { timeout: 300 });
  };
  const watch = () =>
    document.querySelectorAll(".tfbook-explorable:not([data-called])").forEach((e) => near.observe(e));
  document.addEventListener("tfbook-filled", watch);
  document.addEventListener("tfbook-wake", ({ target }) => call(target));

  const begin = () => {
    const first = document.querySelector(".tfbook-explorable");
    if (first && !first.closest("section section")) load(first.dataset.module).catch(() => {});
    watch();
  };
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", begin);
  else begin();
})();
