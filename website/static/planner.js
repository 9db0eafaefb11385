// Shows a row of plans.json, which website/planner.py made with `course plan`.
"use strict";
(async () => {
  const root = document.getElementById("planner");
  const out = root.querySelector(".planner-out");
  let data;
  try {
    data = await (await fetch(new URL("_static/plans.json", document.baseURI))).json();
  } catch (error) {
    out.textContent = "The table could not be read: open this page from a web server, or run `course plan`.";
    return;
  }
  const form = root.querySelector("form");
  const number = (n, digits) => n.toLocaleString("en", { maximumFractionDigits: digits });
  const fill = (name, options, chosen) => {
    for (const [value, words] of options) {
      form[name].add(new Option(words, value, false, String(value) === chosen));
    }
  };
  fill("model", data.models.map((m) => [m, m]), "llama3-405b");
  fill("cluster", Object.entries(data.clusters), "meta");
  fill("gpus", data.gpus.map((n) => [n, number(n, 0)]), "16384");
  fill("seq", data.sequences.map((n) => [n, number(n, 0)]), "8192");

  const make = (tag, attributes, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };
  // A stacked bar of named parts, with its parts in words below.
  const bar = (parts, whole, unit, line) => {
    const shown = Object.entries(parts).filter(([, value]) => value > 0.001 * whole);
    const strip = make("div", { class: "planner-bar", "aria-hidden": "true" });
    shown.forEach(([name, value], i) => {
      const width = `width:${(100 * value) / whole}%`;
      strip.append(make("span", { class: `part-${i % 8}`, style: width, title: name }));
    });
    if (line) strip.append(make("i", { class: "planner-line", style: `left:${(100 * line) / whole}%` }));
    const list = make("ul", { class: "planner-parts" });
    shown.forEach(([name, value], i) => {
      const key = make("span", { class: `planner-key part-${i % 8}`, "aria-hidden": "true" });
      list.append(make("li", {}, key, `${name} ${number(value, value < 10 ? 2 : 0)} ${unit}`));
    });
    return make("div", {}, strip, list);
  };
  const scaled = (parts, by) => Object.fromEntries(Object.entries(parts).map(([k, v]) => [k, v / by]));
  const show = () => {
    const key = ["model", "cluster", "gpus", "seq"].map((name) => form[name].value).join("/");
    const found = data.plans[key];
    // A line breaks between options, never inside one.
    const options = found.command.split(/ (?=--)/).flatMap((word) => [make("span", {}, word), " "]);
    out.replaceChildren(make("p", {}, make("code", {}, ...options)));
    if (found.none) {
      out.append(make("p", {}, found.none));
      return;
    }
    const slowest = Math.max(...found.layouts.map((row) => row.step_s));
    const memories = found.layouts.map((row) => Object.values(row.memory_bytes).reduce((a, b) => a + b, 0));
    const most = Math.max(found.memory_gb * 1e9, ...memories) * 1.05;
    found.layouts.forEach((row, i) => {
      const axes = Object.entries(row.layout).filter(([name, n]) => n !== 1 || name === "zero");
      const [low, high] = row.step_s_interval || [];
      const sure = low ? `8 of 10 published runs lay between ${number(low, 2)} and ${number(high, 2)} s` :
        "no published run was compared";
      const facts = `step ${number(row.step_s, 2)} s (${sure}), ${number(row.tokens_per_s_per_gpu, 0)} tokens/s per GPU, ` +
        `MFU ${number(100 * row.mfu, 1)}%, ${number(memories[i] / 1e9, 1)} of ${number(found.memory_gb, 0)} GB`;
      out.append(
        make("section", { class: "planner-row" },
          make("h2", {}, axes.map(([name, n]) => `${name} ${n}`).join(", ")),
          make("p", {}, facts),
          bar(row.terms_s, slowest, "s"),
          bar(scaled(row.memory_bytes, 1e9), most / 1e9, "GB", found.memory_gb)),
      );
    });
  };
  form.addEventListener("change", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
})();
