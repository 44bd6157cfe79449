// All places of all processes side by side, on one scale; one of them is chosen.
(() => {
  const cards = vr.byId("rank-cards");
  let made = [];

  const ends = vr.views.map(({ place }) => (place && place.timeline ? place.timeline.time.at(-1) || 0 : 0));
  const longest = Math.max(1, ...ends);
  const used = (view) => (view.place ? Math.max(view.place.peaks.reserved + view.place.peaks.past, view.place.peaks.live) : 0);
  // Memory of the host is not measured by that of devices.
  const kind = (view) => Boolean(view.place) && view.place.device === null;
  const most_of = [false, true].map((is_host) => Math.max(1, ...vr.views.filter((view) => kind(view) === is_host).map(used)));

  const draw = (canvas, view) => {
    const { place } = view;
    const most = most_of[Number(kind(view))];
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    const context = vr.sized(canvas, width, height);
    context.clearRect(0, 0, width, height);
    const y = (bytes) => height - (bytes / most) * (height - 2);
    context.strokeStyle = vr.colour("grid");
    context.strokeRect(0.5, 0.5, width - 1, height - 1);
    if (!place) {
      return;
    }
    const line = place.timeline;
    if (!line) {
      // No times: bars of the peaks.
      context.fillStyle = vr.colour("cached");
      context.fillRect(0, y(place.peaks.reserved), width, height);
      context.fillStyle = vr.colour("live");
      context.fillRect(0, y(place.peaks.live), width, height);
    } else {
      for (const [column, colour] of [[line.reserved, "cached"], [line.live, "live"]]) {
        context.fillStyle = vr.colour(colour);
        context.beginPath();
        let last = null;
        column.forEach((bytes, n) => {
          const x = (line.time[n] / longest) * width;
          if (last === null) {
            context.moveTo(x, height);
          } else {
            context.lineTo(x, last);
          }
          last = y(bytes);
          context.lineTo(x, last);
        });
        context.lineTo((line.time.at(-1) / longest) * width, height);
        context.fill();
      }
    }
    const limit = place.limits.at(-1);
    if (limit && limit[1] !== null && limit[1] <= most * 1.01) {
      context.strokeStyle = vr.colour("wrong");
      context.setLineDash([5, 4]);
      context.beginPath();
      context.moveTo(0, y(limit[1]));
      context.lineTo(width, y(limit[1]));
      context.stroke();
      context.setLineDash([]);
    }
    context.fillStyle = vr.colour("wrong");
    for (const { time } of place.failures) {
      context.fillRect((time / longest) * width - 1, 0, 2, height);
    }
  };

  const card = (view, n) => {
    const { place } = view;
    const canvas = vr.element("canvas", {});
    const facts = [];
    if (place) {
      facts.push("most live " + vr.bytes(place.peaks.live) + ", reserved " + vr.bytes(place.peaks.reserved));
      if (place.peaks.past > 0) {
        facts.push("past the pool " + vr.bytes(place.peaks.past));
      }
    }
    const failed = place && place.peaks.failures > 0 ? [vr.element("span", { class: "bad" }, vr.count(place.peaks.failures, "failure"))] : [];
    const button = vr.element(
      "button",
      { class: "card", type: "button" },
      vr.element("b", {}, vr.viewName(view)),
      canvas,
      ...facts.map((fact) => vr.element("span", {}, fact)),
      ...failed,
    );
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => vr.choose(n));
    cards.append(button);
    return { button, canvas, view };
  };

  const redraw = () => made.forEach(({ canvas, view }) => draw(canvas, view));

  if (vr.views.length > 1) {
    vr.byId("ranks").hidden = false;
    made = vr.views.map(card);
  }
  vr.on("view", (view) => made.forEach((one) => one.button.setAttribute("aria-pressed", String(one.view === view))));
  vr.on("theme", redraw);
  vr.on("resize", redraw);
  vr.on("shown", redraw);
})();
