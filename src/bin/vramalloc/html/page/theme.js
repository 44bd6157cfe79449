// Light or dark: as the system says, or as was chosen here.
(() => {
  const KEY = "vramalloc-theme";
  const select = vr.byId("theme");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const apply = () => {
    const is_dark = select.value === "dark" || (select.value === "auto" && dark.matches);
    document.documentElement.dataset.theme = is_dark ? "dark" : "light";
    vr.tell("theme");
  };
  try {
    const kept = localStorage.getItem(KEY);
    if (["light", "dark"].includes(kept)) {
      select.value = kept;
    }
  } catch {
    // The browser keeps nothing for this page.
  }
  select.addEventListener("change", () => {
    try {
      localStorage.setItem(KEY, select.value);
    } catch {
      // As above.
    }
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
})();
