// How numbers and texts are written, and elements made. Text from files is only ever
// put in as text.
"use strict";
const vr = {};
(() => {
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

  vr.bytes = (n) => {
    const sign = n < 0 ? "−" : "";
    let value = Math.abs(n);
    let unit = 0;
    while (value >= 1023.95 && unit + 1 < UNITS.length) {
      value /= 1024;
      unit += 1;
    }
    return sign + (unit === 0 ? value : value.toFixed(1)) + " " + UNITS[unit];
  };

  // Microseconds, to about the precision of a step of so many.
  vr.time = (us, step) => {
    const fine = step === undefined ? Math.abs(us) / 1000 : step;
    const digits = (unit) => Math.max(0, Math.min(6, Math.ceil(Math.log10(unit / Math.max(fine, 1e-3)))));
    if (Math.abs(us) < 1e6 && fine < 1e5) {
      return (us / 1e3).toFixed(Math.min(digits(1e3), 3)) + " ms";
    }
    if (Math.abs(us) < 600e6) {
      return (us / 1e6).toFixed(digits(1e6)) + " s";
    }
    const seconds = Math.round(us / 1e6);
    const two = (n) => String(n).padStart(2, "0");
    const hours = Math.floor(seconds / 3600);
    return (hours ? hours + ":" : "") + two(Math.floor(seconds / 60) % 60) + ":" + two(seconds % 60) + (hours ? " h" : " min");
  };

  vr.share = (part, whole) => (whole > 0 ? ((100 * part) / whole).toFixed(1) + " %" : "-");

  vr.count = (n, what) => n.toLocaleString("en") + " " + what + (n === 1 ? "" : what.endsWith("s") ? "es" : "s");

  vr.byId = (id) => document.getElementById(id);

  // An element with properties, and children that are elements or text.
  vr.element = (tag, properties, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (name === "class") {
        made.className = value;
      } else if (name in made) {
        made[name] = value;
      } else {
        made.setAttribute(name, value);
      }
    }
    made.append(...children);
    return made;
  };

  vr.fill = (parent, ...children) => parent.replaceChildren(...children);

  // A table: columns are [title, class], rows lists of cells.
  vr.table = (parent, columns, rows) => {
    const head = columns.map(([title, kind]) => vr.element("th", { class: kind || "", scope: "col" }, title));
    const body = rows.map((cells) =>
      vr.element("tr", {}, ...cells.map((cell, at) => vr.element("td", { class: columns[at][1] || "" }, cell))));
    vr.fill(parent, vr.element("thead", {}, vr.element("tr", {}, ...head)), vr.element("tbody", {}, ...body));
  };

  // The value of a colour of the page's style.
  vr.colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  const listeners = {};
  vr.on = (event, act) => (listeners[event] ||= []).push(act);
  vr.tell = (event, value) => (listeners[event] || []).forEach((act) => act(value));

  // A canvas as large as it is shown, in its own pixels.
  vr.sized = (canvas, width, height) => {
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return context;
  };
})();
