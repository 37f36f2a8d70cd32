"use strict";
// The table of variants: filtered, sorted, and with rows for as many as were asked for. Texts are only ever set as text.
(() => {
  const STEP = 100;
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const [table, words, op, axes, spilling] = ["table", "words", "op", "axes", "spilling"].map(byId);
  const heads = table.tHead.rows[0], body = table.tBodies[0];
  const columnOf = (title) => data.columns.findIndex(([name]) => name === title);
  const OP = columnOf("Op"), SPILLS = columnOf("Spills");
  const searched = data.rows.map((row) => row.filter((_, at) => !data.columns[at][1]).join(" ").toLowerCase());
  let found = [], shown = 0, sorted = { column: -1, sign: 1 };

  const element = (name, text, properties = {}) =>
    Object.assign(document.createElement(name), { textContent: text, ...properties });

  function choice(label, values) {
    const select = document.createElement("select");
    select.append(element("option", "all", { value: "" }), ...values.map((value) => element("option", value, { value })));
    select.addEventListener("change", filter);
    const whole = element("label", `${label} `);
    whole.append(select);
    return whole;
  }

  function showAxes() {
    const names = op.value === "" ? [] : data.axes[op.value];
    const points = data.points.filter((_, at) => data.rows[at][OP] === op.value);
    axes.replaceChildren(...names.map((name, at) => choice(name, [...new Set(points.map((point) => point[at]))])));
  }

  function filter() {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const values = [...axes.querySelectorAll("select")].map((select) => select.value);
    found = [...data.rows.keys()].filter((at) =>
      (op.value === "" || data.rows[at][OP] === op.value) &&
      values.every((value, axis) => value === "" || data.points[at][axis] === value) &&
      (!spilling.checked || data.rows[at][SPILLS] > 0) &&
      wanted.every((word) => searched[at].includes(word)));
    show();
  }

  function compare(one, other) {
    const [a, b] = [data.rows[one][sorted.column], data.rows[other][sorted.column]];
    if (a === b) return one - other;
    if (a === null || b === null) return a === null ? 1 : -1;
    return sorted.sign * (a < b ? -1 : 1);
  }

  function show() {
    if (sorted.column >= 0) found.sort(compare);
    body.replaceChildren();
    shown = 0;
    more();
  }

  function more() {
    const next = found.slice(shown, shown + STEP);
    body.append(...next.map((at) => {
      const row = document.createElement("tr");
      row.append(...data.rows[at].map((value, column) =>
        element("td", value ?? "–", { className: data.columns[column][1] ? "number" : "" })));
      return row;
    }));
    shown += next.length;
    const left = found.length - shown;
    byId("more").hidden = left === 0;
    byId("more").textContent = `Show ${Math.min(STEP, left)} more`;
    byId("count").textContent = `${found.length} of ${data.rows.length} variants` + (left ? `, the first ${shown} shown` : "");
  }

  function sortBy(column) {
    sorted = { column, sign: sorted.column === column ? -sorted.sign : 1 };
    [...heads.cells].forEach((cell, at) => cell.setAttribute("aria-sort",
      at !== column ? "none" : sorted.sign > 0 ? "ascending" : "descending"));
    show();
  }

  data.columns.forEach(([title, isNumber], column) => {
    const head = element("th", "", { scope: "col", className: isNumber ? "number" : "" });
    const button = element("button", title, { type: "button" });
    button.addEventListener("click", () => sortBy(column));
    head.setAttribute("aria-sort", "none");
    head.append(button);
    heads.append(head);
  });
  spilling.closest("label").hidden = data.rows.every((row) => row[SPILLS] === null);
  op.append(...Object.keys(data.axes).map((name) => element("option", name, { value: name })));
  op.addEventListener("change", () => { showAxes(); filter(); });
  words.addEventListener("input", filter);
  spilling.addEventListener("change", filter);
  byId("more").addEventListener("click", () => {
    const first = shown;
    more();
    if (byId("more").hidden) body.rows[first].cells[0].closest(".wide").focus();
  });
  filter();
})();
