// What the page shows, as the command wrote it, and what follows from it.
(() => {
  vr.page = JSON.parse(vr.byId("data").textContent);

  // Before its first change a place of a recording had nothing.
  for (const { is_recorded, places } of vr.page.processes) {
    for (const { timeline } of places) {
      if (is_recorded && timeline && timeline.time[0] > 0) {
        for (const column of [timeline.time, timeline.live, timeline.limbo, timeline.reserved, timeline.past]) {
          column.unshift(0);
        }
        if (timeline.at.length > 0) {
          timeline.at = [0, ...timeline.at.map((at) => at + 1)];
          timeline.held.unshift([]);
        }
      }
    }
  }

  // A view is a place of a process: a device, or memory of the host.
  vr.views = [];
  for (const process of vr.page.processes) {
    for (const place of process.places) {
      vr.views.push({ process, place });
    }
    if (process.places.length === 0) {
      vr.views.push({ process, place: null });
    }
  }
  vr.viewName = (view) => {
    const name = view.place ? view.place.name : "no device memory";
    return vr.page.processes.length > 1 ? view.process.label + ", " + name : name;
  };

  // The names of the places of a holder, the outermost first.
  vr.places = (process, holder) => {
    const stack = process.holders.stacks[holder] || [];
    return stack.map((name) => process.holders.names[name]);
  };
  // In one line, the innermost first; of many places the first.
  vr.holderName = (process, holder, most) => {
    if (holder === null || holder === undefined) {
      return "";
    }
    const places = vr.places(process, holder).reverse();
    const shown = places.slice(0, most || places.length);
    return shown.join(" < ") + (shown.length < places.length ? " < …" : "");
  };

  // What each holder held at a moment of which that is known: a map of bytes.
  vr.heldAt = (timeline, step) => {
    const held = new Map();
    for (let n = 0; n <= step; n += 1) {
      const changes = timeline.held[n];
      for (let at = 0; at < changes.length; at += 2) {
        const sum = (held.get(changes[at]) || 0) + changes[at + 1];
        if (sum === 0) {
          held.delete(changes[at]);
        } else {
          held.set(changes[at], sum);
        }
      }
    }
    return held;
  };

  // A tree of places with the bytes of holders, for the flame graph.
  vr.tree = (process, held) => {
    const root = { name: "all", value: 0, children: [], index: new Map() };
    for (const [holder, bytes] of held) {
      if (bytes <= 0) {
        continue;
      }
      let node = root;
      node.value += bytes;
      for (const name of vr.places(process, holder)) {
        let next = node.index.get(name);
        if (!next) {
          next = { name, value: 0, children: [], index: new Map() };
          node.index.set(name, next);
          node.children.push(next);
        }
        next.value += bytes;
        node = next;
      }
    }
    const order = [root];
    for (const node of order) {
      delete node.index;
      node.children.sort((one, other) => other.value - one.value);
      for (const child of node.children) {
        order.push(child);
      }
    }
    return root;
  };

  // The first index of a sorted list whose value is not below this one.
  vr.firstAt = (list, value) => {
    let [low, high] = [0, list.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (list[middle] < value) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
})();
