// The flame graph of who held memory: in the range that is selected, or at a moment that
// the statistics tell of.
(() => {
  const CELL = 21;
  const MOST_ROWS = 100;
  const box = vr.byId("flame");
  const mode = vr.byId("flame-mode");
  const find = vr.byId("flame-find");
  let view = null;
  let range = null;
  let chart = null;
  let chosen = null;
  let total = 0;

  const MODES = [
    ["most", "what was live when the range had most"],
    ["grown", "what grew from the first to the last of the range"],
    ["shrunk", "what shrank from the first to the last of the range"],
  ];

  const timeline = () => view.place && view.place.timeline;
  const has_steps = () => Boolean(timeline() && timeline().at.length > 0 && range);

  // What is shown: bytes by holder, and words about it.
  const held = () => {
    if (mode.value.startsWith("moment")) {
      const moment = view.process.moments[Number(mode.value.slice(6))];
      return [new Map(moment.held), "as " + moment.when];
    }
    if (!has_steps()) {
      return [new Map(), ""];
    }
    const steps = range.steps;
    const line = timeline();
    const at = (step) => vr.time(line.time[line.at[step]]);
    if (mode.value === "most") {
      const most = steps.reduce((best, step) => (line.live[line.at[step]] > line.live[line.at[best]] ? step : best), steps[0]);
      const is_most = range.is_known && line.live[line.at[most]] >= range.most;
      const what = is_most ? (range.is_whole ? "when the most was live" : "when the range had most") : "the nearest moment of which this is known";
      return [vr.heldAt(line, most), "at " + at(most) + ", " + what];
    }
    const [first, last] = [range.before, range.after];
    const [before, after] = [vr.heldAt(line, first), vr.heldAt(line, last)];
    const sign = mode.value === "grown" ? 1 : -1;
    const change = new Map();
    for (const holder of new Set([...before.keys(), ...after.keys()])) {
      const bytes = sign * ((after.get(holder) || 0) - (before.get(holder) || 0));
      if (bytes > 0) {
        change.set(holder, bytes);
      }
    }
    return [change, "from " + at(first) + " to " + at(last)];
  };

  // A colour by the name, the same in both themes, with dark text on it.
  const colour = (name) => {
    let hash = 0;
    for (let n = 0; n < name.length; n += 1) {
      hash = (hash * 31 + name.charCodeAt(n)) | 0;
    }
    const hue = 18 + (Math.abs(hash) % 1000) * 0.042;
    const light = 66 + (Math.abs(hash >> 10) % 100) * 0.12;
    return "hsl(" + hue.toFixed(0) + " 82% " + light.toFixed(0) + "%)";
  };

  const describe = (node) => {
    const bytes = node.data.value;
    vr.byId("flame-detail").textContent = node.data.name + ": " + vr.bytes(bytes) + " (" + vr.share(bytes, total) + ")";
  };

  const mark = () => {
    for (const group of box.querySelectorAll("g.chosen")) {
      group.classList.remove("chosen");
    }
    if (chosen) {
      for (const group of box.querySelectorAll("g.frame")) {
        if (d3.select(group).datum() === chosen) {
          group.classList.add("chosen");
          // By itself: the page is not to move.
          const [above, below] = [group.getBoundingClientRect(), box.getBoundingClientRect()];
          if (above.top < below.top) {
            box.scrollTop -= below.top - above.top;
          } else if (above.bottom > below.bottom) {
            box.scrollTop += above.bottom - below.bottom;
          }
        }
      }
      describe(chosen);
    }
  };

  const table = (map) => {
    const rows = [...map].filter(([, bytes]) => bytes > 0).sort((one, other) => other[1] - one[1]);
    const shown = rows.slice(0, MOST_ROWS).map(([holder, bytes]) => [vr.bytes(bytes), vr.share(bytes, total), vr.holderName(view.process, holder, 8)]);
    vr.table(vr.byId("holder-table"), [["bytes", "number"], ["share", "number"], ["innermost < called by", "wide"]], shown);
    vr.byId("holders").hidden = rows.length === 0;
  };

  const search = () => {
    if (!chart) {
      return;
    }
    chosen = null;
    if (find.value) {
      chart.search(find.value);
    } else {
      chart.clear();
      vr.byId("flame-detail").textContent = "";
    }
    mark();
  };

  const draw = () => {
    const [map, when] = held();
    const tree = vr.tree(view.process, map);
    total = tree.value;
    chosen = null;
    chart = null;
    vr.fill(box);
    vr.byId("flame-detail").textContent = "";
    table(map);
    const holders = [...map.values()].filter((bytes) => bytes > 0).length;
    const are = mode.value.startsWith("moment") ? "holder" : view.process.holders.are;
    vr.byId("flame-total").textContent = when === "" ? "" : vr.bytes(total) + " of " + vr.count(holders, are) + ", " + when + ".";
    if (total === 0) {
      const none = when === "" ? "There is nothing that tells who held memory." : "Nothing.";
      vr.fill(box, vr.element("p", { class: "note" }, none));
      return;
    }
    const inner = vr.element("div", {});
    box.append(inner);
    const width = Math.max(200, box.clientWidth - 2);
    chart = flamegraph.default()
      .width(width)
      .cellHeight(CELL)
      .minFrameSize(1)
      .inverted(true)
      .sort(false)
      .transitionDuration(0)
      .setColorMapper((node) => (node.highlight ? "#e879f9" : colour(node.data.name)))
      .setLabelHandler((node) => node.data.name + ": " + vr.bytes(node.data.value) + " (" + vr.share(node.data.value, total) + ")")
      .setSearchMatch((node, term) => node.data.name.toLowerCase().includes(term.toLowerCase()))
      .setSearchHandler((found, sum) => {
        vr.byId("flame-detail").textContent = found.length === 0 ? "nothing is called so" : vr.bytes(sum) + " (" + vr.share(sum, total) + ") in what is called so";
      })
      .setDetailsHandler(() => {})
      .onHover(describe)
      .onClick((node) => {
        chosen = node;
        mark();
      });
    d3.select(inner).datum(tree).call(chart);
    // By itself it lets them grow to their width for a quarter of a second.
    d3.select(inner).selectAll("rect").interrupt().attr("width", (node) => (node.x1 - node.x0) * width);
    // It leaves room for a title, which stands above.
    const depth = d3.max(d3.select(inner).selectAll("g").data(), (node) => node.depth);
    d3.select(inner).select("svg").attr("height", (depth + 1) * CELL);
    if (find.value) {
      search();
    }
  };

  const reset = () => {
    if (chart) {
      chart.resetZoom();
      chosen = null;
      mark();
      vr.byId("flame-detail").textContent = "";
    }
  };

  box.addEventListener("keydown", (event) => {
    if (!chart || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    const root = d3.select(box.firstChild).datum();
    const visible = (node) => node && !node.data.hide;
    const beside = (by) => {
      const all = chosen.parent ? chosen.parent.children.filter(visible) : [chosen];
      return all[all.indexOf(chosen) + by];
    };
    const moves = {
      ArrowDown: () => chosen.children && chosen.children.find(visible),
      ArrowUp: () => chosen.parent,
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Home: () => root,
    };
    if (moves[event.key]) {
      event.preventDefault();
      chosen = chosen ? moves[event.key]() || chosen : root;
      mark();
    } else if ((event.key === "Enter" || event.key === " ") && chosen) {
      event.preventDefault();
      const node = chosen;
      chart.zoomTo(node);
      chosen = node;
      mark();
    } else if (event.key === "Escape") {
      event.preventDefault();
      reset();
    }
  });

  const modes = () => {
    const before = mode.value;
    const moments = view.process.moments.map((moment, n) => ["moment" + n, moment.when]);
    const options = [...(has_steps() ? MODES : []), ...moments];
    vr.fill(mode, ...options.map(([value, text]) => vr.element("option", { value }, text)));
    mode.disabled = options.length === 0;
    if (options.some(([value]) => value === before)) {
      mode.value = before;
    }
  };

  mode.addEventListener("change", draw);
  find.addEventListener("input", search);
  vr.byId("flame-reset").addEventListener("click", reset);

  vr.on("view", (next) => {
    view = next;
    range = null;
  });
  vr.on("range", (next) => {
    range = next;
    modes();
    if (next && !next.is_whole && mode.value.startsWith("moment") && has_steps()) {
      mode.value = "most";
    }
    draw();
  });
  vr.on("resize", () => view && draw());
})();
