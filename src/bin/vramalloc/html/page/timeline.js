// Memory over time, in which a range can be selected and zoomed to.
(() => {
  const HEIGHT = 300;
  const box = vr.byId("plot");
  const select = { from: 0, to: 0, is: false };
  let view = null;
  let timeline = null;
  let plot = null;
  // The range of time that is shown, and the whole.
  let shown = [0, 1];
  let whole = [0, 1];
  let cursor = 0;
  let anchor = 0;

  const SERIES = [
    ["live", "live", (n) => timeline.live[n]],
    ["limbo", "in limbo", (n) => timeline.limbo[n]],
    ["cached", "cached", (n) => Math.max(0, timeline.reserved[n] - timeline.live[n] - timeline.limbo[n])],
    ["past", "past the pool", (n) => timeline.past[n]],
  ];

  // The upper edges of what is stacked, the highest first.
  const columns = () => {
    const held = timeline.live.map((live, n) => live + timeline.limbo[n]);
    const pool = timeline.reserved.map((reserved, n) => Math.max(reserved, held[n]));
    const all = pool.map((bytes, n) => bytes + timeline.past[n]);
    return [timeline.time, all, pool, held, timeline.live];
  };

  const limitAt = (time) => {
    let limit = null;
    for (const [since, bytes] of view.place.limits) {
      limit = since <= time ? bytes : limit;
    }
    return limit;
  };

  // The top of the picture: of what there is, and of a limit that is near.
  const top = (edges) => {
    const most = edges[1].reduce((sum, bytes) => Math.max(sum, bytes), 1);
    const limits = view.place.limits.map(([, bytes]) => bytes || 0).filter((bytes) => bytes <= most * 2);
    return Math.max(most, ...limits) * 1.06;
  };

  const step = () => (shown[1] - shown[0]) / 1000;

  const marks = (u) => {
    const { ctx } = u;
    const ratio = window.devicePixelRatio || 1;
    const x = (time) => Math.round(u.valToPos(time, "x", true));
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    ctx.strokeStyle = vr.colour("wrong");
    ctx.fillStyle = vr.colour("wrong");
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([7 * ratio, 5 * ratio]);
    view.place.limits.forEach(([since, bytes], n) => {
      if (bytes !== null) {
        const next = view.place.limits[n + 1];
        const y = u.valToPos(bytes, "y", true);
        ctx.beginPath();
        ctx.moveTo(x(Math.max(since, shown[0])), y);
        ctx.lineTo(x(Math.min(next ? next[0] : Infinity, shown[1])), y);
        ctx.stroke();
      }
    });
    ctx.setLineDash([]);
    ctx.lineWidth = ratio;
    let last = -Infinity;
    for (const { time } of view.place.failures) {
      const at = x(time);
      if (at > last) {
        last = at;
        ctx.globalAlpha = 0.7;
        ctx.beginPath();
        ctx.moveTo(at, u.bbox.top);
        ctx.lineTo(at, u.bbox.top + u.bbox.height);
        ctx.stroke();
        ctx.globalAlpha = 1;
        ctx.beginPath();
        ctx.moveTo(at - 6 * ratio, u.bbox.top);
        ctx.lineTo(at + 6 * ratio, u.bbox.top);
        ctx.lineTo(at, u.bbox.top + 10 * ratio);
        ctx.fill();
      }
    }
    ctx.restore();
  };

  const showCursor = () => {
    const time = timeline.time[cursor];
    const said = SERIES.filter(([key]) => key !== "past" || timeline.tells_past);
    const texts = said.map(([, name, value]) => vr.bytes(value(cursor)) + " " + name);
    vr.byId("at-cursor").textContent = "At " + vr.time(time, step()) + ": " + texts.join(", ");
  };

  const legend = () => {
    const items = SERIES.filter(([key]) => key !== "past" || timeline.tells_past).map(([key, name]) => {
      const swatch = vr.element("i", {});
      swatch.style.background = vr.colour(key);
      return vr.element("span", {}, swatch, name);
    });
    const limit = limitAt(Infinity) ?? view.place.limits.map(([, bytes]) => bytes).find((bytes) => bytes !== null);
    if (limit !== null && limit !== undefined) {
      items.push(vr.element("span", {}, vr.element("i", { class: "dash" }), "limit " + vr.bytes(limit)));
    }
    if (view.place.failures.length > 0) {
      const mark = vr.element("b", {}, "▼ ");
      mark.style.color = vr.colour("wrong");
      items.push(vr.element("span", {}, mark, "out of memory"));
    }
    vr.fill(vr.byId("legend"), ...items);
  };

  // Draws the selection where its range lies in what is shown.
  const drawSelection = (u) => {
    const width = u.over.clientWidth;
    const place = (time) => Math.max(0, Math.min(width, u.valToPos(time, "x")));
    const [left, right] = select.is ? [place(select.from), place(select.to)] : [0, 0];
    const is_seen = select.is && select.from < shown[1] && select.to > shown[0];
    u.setSelect({ left, top: 0, width: is_seen ? Math.max(2, right - left) : 0, height: is_seen ? u.over.clientHeight : 0 }, false);
  };

  const zoom = (from, to) => {
    const least = Math.max((whole[1] - whole[0]) / 1e5, 2);
    const width = Math.min(Math.max(to - from, least), whole[1] - whole[0]);
    const middle = (from + to) / 2;
    const low = Math.max(whole[0], Math.min(middle - width / 2, whole[1] - width));
    shown = [low, low + width];
    plot.setScale("x", { min: shown[0], max: shown[1] });
    buttons();
  };

  const zoomBy = (factor, around) => {
    const at = around === undefined ? (select.is ? (select.from + select.to) / 2 : (shown[0] + shown[1]) / 2) : around;
    zoom(at - (at - shown[0]) * factor, at + (shown[1] - at) * factor);
  };

  const buttons = () => {
    const is_whole = shown[0] <= whole[0] && shown[1] >= whole[1];
    vr.byId("zoom-out").disabled = is_whole;
    vr.byId("zoom-all").disabled = is_whole;
    vr.byId("zoom-selected").disabled = !select.is;
    vr.byId("clear").disabled = !select.is;
  };

  // What is known of a range of time: its points, the steps whose holders are known, and
  // of these the last before its first point and before its last.
  const range = (from, to) => {
    const first = Math.max(0, vr.firstAt(timeline.time, from) - 1);
    // Of several points at one time the last: times are whole numbers.
    const last = Math.max(vr.firstAt(timeline.time, Math.floor(to) + 1) - 1, first);
    const known = (point) => Math.max(0, vr.firstAt(timeline.at, point + 1) - 1);
    const inside = (at) => timeline.time[at] >= from && timeline.time[at] <= to;
    const steps = timeline.at.map((at, n) => (inside(at) ? n : -1)).filter((n) => n >= 0);
    const is_known = steps.length > 0;
    if (!is_known && timeline.at.length > 0) {
      // Between two of them: the nearer one.
      const after = timeline.at.findIndex((at) => timeline.time[at] >= from);
      const time = (n) => timeline.time[timeline.at[n]];
      const last_step = timeline.at.length - 1;
      const is_before = after > 0 && from - time(after - 1) < time(after) - to;
      steps.push(after < 0 ? last_step : is_before ? after - 1 : after);
    }
    return { from, to, first, last, steps, is_known, before: known(first), after: known(last) };
  };

  const tellRange = () => {
    const is = select.is && select.to > select.from;
    const now = is ? range(select.from, select.to) : range(whole[0], whole[1]);
    let [most, limbo, reserved] = [now.first, 0, 0];
    for (let n = now.first; n <= now.last; n += 1) {
      most = timeline.live[n] > timeline.live[most] ? n : most;
      limbo = Math.max(limbo, timeline.limbo[n]);
      reserved = Math.max(reserved, timeline.reserved[n]);
    }
    const grew = timeline.live[now.last] - timeline.live[now.first];
    const failed = view.place.failures.filter(({ time }) => time >= now.from && time <= now.to).length;
    const fine = (now.to - now.from) / 1000;
    const what = is ? "Selected " + vr.time(now.from, fine) + " to " + vr.time(now.to, fine) + " (" + vr.time(now.to - now.from) + ")" : "All of it";
    vr.byId("selected").textContent =
      what + ": most live " + vr.bytes(timeline.live[most]) + " at " + vr.time(Math.max(timeline.time[most], now.from), fine) +
      ", " + (grew < 0 ? "shrank by " + vr.bytes(-grew) : "grew by " + vr.bytes(grew)) + " to " + vr.bytes(timeline.live[now.last]) +
      ", at most " + vr.bytes(reserved) + " reserved and " + vr.bytes(limbo) + " in limbo" +
      (failed > 0 ? ", " + vr.count(failed, "request") + " out of memory" : "") + ".";
    vr.tell("range", { ...now, is_whole: !is, most: timeline.live[most] });
    buttons();
  };

  const selectRange = (from, to) => {
    select.is = to > from;
    [select.from, select.to] = [Math.max(whole[0], from), Math.min(whole[1], to)];
    drawSelection(plot);
    tellRange();
  };

  // The room of an axis, by its longest label: half a number is another number.
  const labelled = (u, labels, at, cycle) => {
    const axis = u.axes[at];
    if (cycle > 1) {
      return axis._size;
    }
    u.ctx.font = axis.font[0];
    const widths = (labels || []).map((label) => u.ctx.measureText(label).width);
    return Math.ceil(axis.ticks.size + axis.gap + Math.max(0, ...widths) / (window.devicePixelRatio || 1));
  };

  const make = () => {
    if (plot) {
      plot.destroy();
      plot = null;
    }
    if (!timeline) {
      return;
    }
    const edges = columns();
    const most = top(edges);
    const filled = (key) => ({ stroke: vr.colour(key), fill: vr.colour(key), width: 0, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }) });
    const axis = { stroke: vr.colour("dim"), grid: { stroke: vr.colour("grid"), width: 1 }, ticks: { stroke: vr.colour("line"), width: 1 }, font: "12px system-ui, sans-serif" };
    const powers = Array.from({ length: 60 }, (_, n) => 2 ** n);
    const narrow = box.clientWidth < 520;
    plot = new uPlot(
      {
        width: box.clientWidth,
        height: HEIGHT,
        pxAlign: 1,
        legend: { show: false },
        padding: [8, 12, 0, 0],
        cursor: {
          drag: { x: true, y: false, setScale: false, dist: 3 },
          points: { show: false },
          bind: { dblclick: () => () => zoom(whole[0], whole[1]) },
        },
        scales: { x: { time: false, range: () => shown }, y: { range: () => [0, most] } },
        series: [{}, filled("past"), filled("cached"), filled("limbo"), filled("live")],
        axes: [
          { ...axis, size: 36, space: narrow ? 70 : 90, values: (u, splits) => splits.map((us) => vr.time(us, Math.max((splits[1] - splits[0]) / 2, 1))) },
          { ...axis, size: labelled, space: 34, incrs: powers, values: (u, splits) => splits.map(vr.bytes) },
        ],
        hooks: {
          // Where things are is known only now.
          draw: [marks, (u) => drawSelection(u)],
          setSelect: [
            (u) => {
              if (u.select.width > 0) {
                selectRange(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
              }
            },
          ],
          setCursor: [
            (u) => {
              if (u.cursor.idx !== null && u.cursor.idx !== undefined && u.cursor.left >= 0) {
                cursor = u.cursor.idx;
                showCursor();
              }
            },
          ],
        },
      },
      edges,
      box,
    );
    plot.over.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        zoomBy(event.deltaY < 0 ? 0.8 : 1.25, plot.posToVal(event.offsetX, "x"));
      }
    }, { passive: false });
    touch(plot.over);
    buttons();
  };

  // Fingers select as the mouse does; up and down they move the page.
  const touch = (over) => {
    over.style.touchAction = "pan-y pinch-zoom";
    let began = null;
    const time = (event) => plot.posToVal(event.clientX - over.getBoundingClientRect().left, "x");
    over.addEventListener("pointerdown", (event) => {
      began = event.pointerType === "mouse" ? null : time(event);
    });
    over.addEventListener("pointermove", (event) => {
      if (began !== null && event.pointerType !== "mouse") {
        const now = time(event);
        selectRange(Math.min(began, now), Math.max(began, now));
      }
    });
    for (const end of ["pointerup", "pointercancel"]) {
      over.addEventListener(end, () => { began = null; });
    }
  };

  const moveCursor = (to, extends_) => {
    if (!extends_) {
      anchor = to;
    }
    cursor = Math.max(0, Math.min(timeline.time.length - 1, to));
    const time = timeline.time[cursor];
    if (time < shown[0] || time > shown[1]) {
      const half = (shown[1] - shown[0]) / 2;
      zoom(time - half, time + half);
    }
    plot.setCursor({ left: plot.valToPos(time, "x"), top: 10 }, false);
    showCursor();
    if (extends_) {
      const ends = [timeline.time[anchor], time];
      selectRange(Math.min(...ends), Math.max(...ends));
    }
  };

  box.addEventListener("keydown", (event) => {
    if (!plot || event.altKey || event.metaKey) {
      return;
    }
    const inside = vr.firstAt(timeline.time, shown[1]) - vr.firstAt(timeline.time, shown[0]);
    const far = Math.max(1, Math.round(inside / (event.ctrlKey ? 10 : 100)));
    const acts = {
      ArrowLeft: () => moveCursor(cursor - far, event.shiftKey),
      ArrowRight: () => moveCursor(cursor + far, event.shiftKey),
      Home: () => moveCursor(0, event.shiftKey),
      End: () => moveCursor(timeline.time.length - 1, event.shiftKey),
      "+": () => zoomBy(0.5, timeline.time[cursor]),
      "=": () => zoomBy(0.5, timeline.time[cursor]),
      "-": () => zoomBy(2, timeline.time[cursor]),
      "0": () => zoom(whole[0], whole[1]),
      Enter: () => select.is && zoom(select.from, select.to),
      Escape: () => selectRange(0, 0),
    };
    if (acts[event.key]) {
      event.preventDefault();
      acts[event.key]();
    }
  });

  vr.byId("zoom-in").addEventListener("click", () => zoomBy(0.5));
  vr.byId("zoom-out").addEventListener("click", () => zoomBy(2));
  vr.byId("zoom-all").addEventListener("click", () => zoom(whole[0], whole[1]));
  vr.byId("zoom-selected").addEventListener("click", () => zoom(select.from, select.to));
  vr.byId("clear").addEventListener("click", () => selectRange(0, 0));

  const thinned = () => {
    if (!timeline) {
      return "";
    }
    const changes = timeline.changes.toLocaleString("en");
    if (timeline.per_step <= 1) {
      return "All " + changes + " changes are shown.";
    }
    return "Thinned out: " + changes + " changes are shown in steps of " + timeline.per_step.toLocaleString("en") +
      ". Of each step there are the moments of the most and of the least live memory, of the most reserved and of the most in limbo, and the last, as they were. " +
      "Who held memory is known of " + vr.count(timeline.at.length, "moment") + ", each the one with the most live among its neighbours or the last of them.";
  };

  vr.on("view", (next) => {
    view = next;
    timeline = view.place && view.place.timeline && view.place.timeline.time.length > 0 ? view.place.timeline : null;
    vr.byId("place-name").textContent = vr.viewName(view);
    vr.byId("thinned").textContent = thinned();
    vr.byId("timeline-body").hidden = !timeline;
    vr.byId("timeline-none").hidden = Boolean(timeline);
    select.is = false;
    if (!timeline) {
      vr.byId("timeline-none").textContent = view.process.is_recorded
        ? "Nothing happened here."
        : "Statistics do not tell of memory over time. A recording does: vramalloc run --option record=%e.%p.rec --option stacks=all";
      make();
      vr.tell("range", null);
      return;
    }
    const last = timeline.time[timeline.time.length - 1];
    // Statistics have only the newest events.
    whole = [view.process.is_recorded ? 0 : timeline.time[0], Math.max(last, timeline.time[0] + 1)];
    shown = [...whole];
    cursor = timeline.at.length > 0 ? timeline.at.reduce((most, at) => (timeline.live[at] > timeline.live[most] ? at : most), timeline.at[0]) : 0;
    anchor = cursor;
    legend();
    make();
    showCursor();
    tellRange();
  });

  vr.on("theme", () => {
    if (view && timeline) {
      legend();
      make();
    }
  });

  vr.on("resize", () => {
    if (plot && plot.width !== box.clientWidth) {
      make();
    }
  });
})();
