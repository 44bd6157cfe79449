// The words of the report: the summary and advice first, the rest below.
(() => {
  const ADVICE = "what would have helped";

  // The parts of a report, each with its heading and lines.
  const parts = (said) => {
    const made = [];
    for (const line of said) {
      const [[kind, value]] = Object.entries(line);
      if (kind === "heading") {
        made.push({ title: value, lines: [] });
      } else {
        if (made.length === 0) {
          made.push({ title: "", lines: [] });
        }
        made[made.length - 1].lines.push([kind, value]);
      }
    }
    return made;
  };

  const body = (lines) => {
    const made = [];
    let open = null;
    const within = (tag, kind) => {
      if (!open || open.kind !== kind) {
        const properties = kind === "fact" ? { class: "facts" } : {};
        open = { kind, element: vr.element(tag, properties) };
        made.push(open.element);
      }
      return open.element;
    };
    for (const [kind, value] of lines) {
      if (kind === "fact") {
        const [name, text] = value;
        within("dl", kind).append(vr.element("div", {}, vr.element("dt", {}, name), vr.element("dd", {}, text)));
      } else if (kind === "item") {
        within("ul", kind).append(vr.element("li", {}, value));
      } else if (kind === "text") {
        within("div", kind).append(vr.element("p", {}, value));
      } else if (value.trim() !== "") {
        within("pre", kind).append(value.replace(/^ {2}/, "") + "\n");
      }
    }
    return made;
  };

  const show = (process) => {
    const all = parts(process.said);
    const summary = all[0] || { title: process.title, lines: [] };
    // Contexts that the same is said of say it once.
    const shown = ({ lines }) => JSON.stringify(lines.filter(([kind, value]) => kind !== "row" || value.trim() !== ""));
    const said = new Map(all.filter((part) => part.title === ADVICE).map((part) => [shown(part), part]));
    const advice = [...said.values()];
    vr.fill(
      vr.byId("summary"),
      vr.element("h2", {}, summary.title),
      ...body(summary.lines),
      ...advice.map((part) => vr.element("div", { class: "advice" }, vr.element("h3", {}, "What would have helped"), ...body(part.lines))),
    );
    const rest = all.slice(1).filter((part) => part.title !== ADVICE);
    vr.byId("words").hidden = rest.length === 0;
    vr.fill(
      vr.byId("words-body"),
      ...rest.map((part) => {
        const title = part.title[0] ? part.title[0].toUpperCase() + part.title.slice(1) : "";
        return vr.element("div", {}, vr.element("h3", {}, title), ...body(part.lines));
      }),
    );
    const notes = process.notes.map((note) => vr.element("li", {}, note));
    vr.fill(vr.byId("notes"), ...notes);
    vr.byId("made").textContent = "Made by vramalloc " + vr.page.version + " from " + process.files.join(", ") + ".";
  };

  vr.on("view", (view) => show(view.process));
})();
