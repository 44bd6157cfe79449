// Begins: shows the first place that held memory, and follows the size of the window.
(() => {
  const { processes } = vr.page;
  const titles = processes.map((process) => process.title);
  const title = titles.length === 1 ? titles[0] : titles.length + " processes";
  vr.byId("title").textContent = "vramalloc report: " + title;
  document.title = "vramalloc: " + title;

  vr.choose = (n) => {
    if (vr.views[n]) {
      vr.tell("view", vr.views[n]);
    }
  };

  let width = 0;
  new ResizeObserver(() => {
    const now = vr.byId("timeline").clientWidth;
    if (now !== width) {
      width = now;
      vr.tell("resize");
    }
  }).observe(vr.byId("timeline"));
  width = vr.byId("timeline").clientWidth;
  vr.choose(0);
  vr.tell("shown");
  document.documentElement.dataset.ready = "yes";
})();
