// The chunks with the blocks in them: a row for each, as wide as the chunk is long.
// Only the rows that are in sight are drawn.
(() => {
  const ROW = 22;
  const BAR = 15;
  const GAP = 6;
  const box = vr.byId("chunk-map");
  const order = vr.byId("chunk-order");
  const canvas = vr.element("canvas", {});
  const spacer = vr.element("div", {});
  box.append(canvas, spacer);
  let view = null;
  let chunks = [];
  let row = 0;
  let piece = 0;

  const sum = (chunk, at) => chunk.pieces.reduce((bytes, parts) => bytes + parts[at], 0);
  const free = (chunk) => chunk.size - sum(chunk, 1) - sum(chunk, 2);

  const left = () => (box.clientWidth < 520 ? 76 : 190);

  const draw = () => {
    const width = box.clientWidth;
    const height = Math.min(420, Math.max(ROW + GAP, chunks.length * ROW + GAP));
    if (chunks.length === 0 || width === 0) {
      return;
    }
    canvas.style.height = height + "px";
    spacer.style.height = Math.max(0, chunks.length * ROW + GAP - height) + "px";
    const context = vr.sized(canvas, width, height);
    const [live, limbo, cached] = ["live", "limbo", "cached"].map(vr.colour);
    const [text, dim, ground] = ["text", "dim", "ground"].map(vr.colour);
    context.fillStyle = ground;
    context.fillRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const from = left();
    const wide = width - from - 10;
    const first = Math.floor(box.scrollTop / ROW);
    for (let n = first; n < chunks.length; n += 1) {
      const y = n * ROW + GAP / 2 - box.scrollTop;
      if (y > height) {
        break;
      }
      const chunk = chunks[n];
      context.fillStyle = n === row ? text : dim;
      context.textAlign = "right";
      context.fillText(vr.bytes(chunk.size), from - 8, y + BAR / 2 + 1);
      if (from > 100) {
        context.textAlign = "left";
        context.fillText(chunk.address.length > 14 ? "…" + chunk.address.slice(-13) : chunk.address, 6, y + BAR / 2 + 1);
      }
      context.fillStyle = cached;
      context.fillRect(from, y, wide, BAR);
      let at = 0;
      for (const [size, held, waits] of chunk.pieces) {
        const [x0, x1] = [from + (at / chunk.size) * wide, from + ((at + size) / chunk.size) * wide];
        const gap = x1 - x0 > 3 ? 1 : 0;
        const part = (bytes) => ((x1 - x0 - gap) * bytes) / size;
        if (held > 0) {
          context.fillStyle = live;
          context.fillRect(x0, y, Math.max(part(held), 0.5), BAR);
        }
        if (waits > 0) {
          context.fillStyle = limbo;
          context.fillRect(x0 + part(held), y, Math.max(part(waits), 0.5), BAR);
        }
        at += size;
      }
      if (n === row) {
        const before = chunk.pieces.slice(0, piece).reduce((bytes, parts) => bytes + parts[0], 0);
        const [size] = chunk.pieces[piece] || [chunk.size];
        context.strokeStyle = text;
        context.lineWidth = 2;
        context.strokeRect(from + (before / chunk.size) * wide, y - 1, Math.max(3, (size / chunk.size) * wide - 1), BAR + 2);
      }
    }
  };

  const tell = () => {
    const chunk = chunks[row];
    if (!chunk) {
      return;
    }
    const parts = [
      "Chunk " + (row + 1) + " of " + chunks.length + " at " + chunk.address + ": " + vr.bytes(chunk.size) + (chunk.mapped ? ", mapped" : "") + ", " +
        vr.count(chunk.blocks, "live block") + ", " + vr.share(sum(chunk, 1), chunk.size) + " live, " + vr.bytes(free(chunk)) + " free",
    ];
    const here = chunk.pieces[piece];
    if (here) {
      const [size, held, waits, blocks, holder] = here;
      const what = held === size ? "live" : waits === size ? "in limbo" : held + waits === 0 ? "free" : vr.bytes(held) + " live in " + vr.count(blocks, "block");
      const who = vr.holderName(view.process, holder, 5);
      parts.push("chosen: " + vr.bytes(size) + ", " + what + (who ? ", " + who : ""));
    }
    vr.byId("chunk-detail").textContent = parts.join("; ");
  };

  const choose = (newRow, newPiece) => {
    row = Math.max(0, Math.min(chunks.length - 1, newRow));
    piece = Math.max(0, Math.min(chunks[row].pieces.length - 1, newPiece));
    draw();
    tell();
  };

  const toSight = () => {
    const [above, below] = [row * ROW, (row + 1) * ROW + GAP];
    if (above < box.scrollTop) {
      box.scrollTop = above;
    } else if (below > box.scrollTop + box.clientHeight) {
      box.scrollTop = below - box.clientHeight;
    }
  };

  const pointed = (event) => {
    const rect = box.getBoundingClientRect();
    const at = Math.floor((event.clientY - rect.top + box.scrollTop - GAP / 2) / ROW);
    if (at < 0 || at >= chunks.length) {
      return;
    }
    const chunk = chunks[at];
    const share = (event.clientX - rect.left - left()) / (box.clientWidth - left() - 10);
    let [rest, inside] = [share * chunk.size, 0];
    while (inside + 1 < chunk.pieces.length && rest >= chunk.pieces[inside][0]) {
      rest -= chunk.pieces[inside][0];
      inside += 1;
    }
    if (at !== row || inside !== piece) {
      choose(at, inside);
    }
  };

  box.addEventListener("pointermove", pointed);
  box.addEventListener("click", pointed);
  box.addEventListener("scroll", draw);
  box.addEventListener("keydown", (event) => {
    if (chunks.length === 0 || event.altKey || event.ctrlKey || event.metaKey) {
      return;
    }
    const page = Math.max(1, Math.floor(box.clientHeight / ROW) - 1);
    const moves = {
      ArrowUp: [row - 1, 0],
      ArrowDown: [row + 1, 0],
      PageUp: [row - page, 0],
      PageDown: [row + page, 0],
      Home: [0, 0],
      End: [chunks.length - 1, 0],
      ArrowLeft: [row, piece - 1],
      ArrowRight: [row, piece + 1],
    };
    if (moves[event.key]) {
      event.preventDefault();
      choose(...moves[event.key]);
      toSight();
      draw();
    }
  });

  const sorted = () => {
    const map = view.place && view.place.map;
    chunks = map ? [...map.chunks] : [];
    if (order.value === "size") {
      chunks.sort((one, other) => other.size - one.size);
    } else if (order.value === "free") {
      const bytes = new Map(chunks.map((chunk) => [chunk, free(chunk)]));
      chunks.sort((one, other) => bytes.get(other) - bytes.get(one));
    }
    [row, piece] = [0, 0];
    box.scrollTop = 0;
    draw();
    tell();
  };
  order.addEventListener("change", sorted);

  const blocks = () => {
    const largest = view.place ? view.place.largest : [];
    const knows = largest.some((block) => block.since !== null);
    vr.byId("blocks").hidden = largest.length === 0;
    vr.byId("blocks-when").textContent = largest.length === 0 ? "" : "The " + largest.length + " largest live blocks " + view.place.largest_when + ".";
    const columns = [["size", "number"], ...(knows ? [["since", "number"]] : []), ["asked for by: innermost < called by", "wide"], ["address", "code"]];
    const rows = largest.map((block) => [
      vr.bytes(block.size),
      ...(knows ? [block.since === null ? "" : vr.time(block.since)] : []),
      vr.holderName(view.process, block.holder, 5),
      block.address,
    ]);
    vr.table(vr.byId("block-table"), columns, rows);
  };

  const failures = () => {
    const all = view.place ? view.place.failures : [];
    vr.byId("failures").hidden = all.length === 0;
    const rows = all.slice(0, 100).map((failure) => [vr.time(failure.time), vr.bytes(failure.size), vr.holderName(view.process, failure.holder, 8)]);
    const more = all.length - rows.length + (view.place ? view.place.failures_left_out : 0);
    if (more > 0) {
      rows.push(["", "", vr.count(more, "more request")]);
    }
    vr.table(vr.byId("failure-table"), [["at", "number"], ["asked for", "number"], ["by", "wide"]], rows);
  };

  vr.on("view", (next) => {
    view = next;
    const map = view.place && view.place.map;
    vr.byId("chunks").hidden = !map || map.chunks.length === 0;
    if (map) {
      const all = map.chunks.length + map.left_out;
      vr.byId("chunks-when").textContent =
        vr.count(all, "chunk") + " " + map.when + "; each row is one chunk, whatever its size: live, in limbo, and free (cached)." +
        (map.left_out > 0 ? " The smallest " + map.left_out.toLocaleString("en") + " (" + vr.bytes(map.left_out_bytes) + ") are left out." : "");
    }
    sorted();
    blocks();
    failures();
  });
  vr.on("theme", () => view && draw());
  vr.on("resize", () => view && draw());
})();
