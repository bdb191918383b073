(function () {
  "use strict";
  var charts = JSON.parse(document.getElementById("charts-data").textContent);
  var root = document.getElementById("charts");
  if (!root || !charts.length) return;
  var drawn = [];

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function two(n) { return (n < 10 ? "0" : "") + n; }

  // A date whose fields here are those of the maker's clock at t, as in the tables; the reader may be in another zone.
  function makers(chart) {
    return function (t) {
      var seconds = 0;
      (chart.ahead || []).forEach(function (pair, i) { if (i === 0 || t >= pair[0]) seconds = pair[1]; });
      var d = new Date((t + seconds) * 1000);
      return new Date(d.getUTCFullYear(), d.getUTCMonth(), d.getUTCDate(), d.getUTCHours(), d.getUTCMinutes(), d.getUTCSeconds(), d.getUTCMilliseconds());
    };
  }

  // 24-hour clock; the day where ticks are a day or more apart, or where it changes.
  function clocks(date, ticks) {
    var before = null;
    return ticks.map(function (t) {
      var d = date(t), day = two(d.getMonth() + 1) + "-" + two(d.getDate()), gap = ticks.length > 1 ? ticks[1] - ticks[0] : 0;
      var words = gap >= 86400 ? day : two(d.getHours()) + ":" + two(d.getMinutes()) + (gap < 60 ? ":" + two(d.getSeconds()) : "");
      var changed = before !== null && before !== day;
      before = day;
      return changed && gap < 86400 ? day + "\n" + words : words;
    });
  }

  function moment(date, t) {
    if (t === null || t === undefined) return "–";
    var d = date(t);
    return two(d.getMonth() + 1) + "-" + two(d.getDate()) + " " + two(d.getHours()) + ":" + two(d.getMinutes()) + ":" + two(d.getSeconds());
  }

  function short(v) {
    if (v === null || v === undefined) return "–";
    var a = Math.abs(v);
    if (a !== 0 && (a < 1e-3 || a >= 1e6)) return v.toExponential(2);
    return String(+v.toPrecision(4));
  }

  // Series of one chart may have points of their own: one table of all x, with gaps.
  function table(chart) {
    return uPlot.join(chart.series.map(function (s) { return [s.x, s.y]; }), chart.series.map(function () {
      return [0, chart.x === "time" ? 1 : 2];   // a break in time stays a break; missing steps are bridged
    }));
  }

  // Without a pointer over it, and on paper, a legend tells each curve's newest value.
  function newest(u) {
    var idxs = u.data.map(function (values) {
      for (var i = values.length - 1; i > 0 && (values[i] === null || values[i] === undefined); i--);
      return i;
    });
    if (idxs[0] >= 0) u.setLegend({ idx: idxs[0], idxs: idxs });
  }

  function options(chart, width) {
    var ink = colour("--soft"), line = colour("--line");
    var axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    var many = chart.series.length === 3 && chart.series[1].name === "mean", date = makers(chart);
    return {
      tzDate: date,
      width: width, height: 230,
      scales: { x: { time: chart.x === "time" } },
      legend: { live: true },
      cursor: { sync: { key: chart.x }, points: { size: 6 } },
      axes: [
        Object.assign({ size: chart.x === "time" ? 42 : 30 }, axis, { values: chart.x === "time" ? function (u, v) { return clocks(date, v); } : function (u, v) { return v.map(function (x) { return x.toLocaleString("en"); }); } }),
        Object.assign({ size: 62, values: function (u, v) { return v.map(short); } }, axis)
      ],
      hooks: { ready: [newest], setCursor: [function (u) { if (u.cursor.idx === null) newest(u); }] },
      series: [chart.x === "time" ? { label: "time", value: function (u, v) { return moment(date, v); } } : { label: "step", value: function (u, v) { return v === null || v === undefined ? "–" : v.toLocaleString("en"); } }].concat(chart.series.map(function (s, i) {
        var c = colour("--c" + (many ? 0 : i % 6));
        return {
          label: s.name, stroke: c, width: many && i !== 1 ? 0.6 : 1.5, alpha: many && i !== 1 ? 0.75 : 1,
          spanGaps: chart.x !== "time", points: { show: s.x.length < 40, size: 5, fill: c },
          value: function (u, v) { return short(v); }
        };
      })),
      bands: many ? [{ series: [1, 3], fill: colour("--c0") + "22" }] : []
    };
  }

  function draw() {
    drawn.forEach(function (u) { u.destroy(); });
    drawn = charts.map(function (chart, i) {
      var box = root.children[i];
      return new uPlot(options(chart, Math.max(240, box.clientWidth)), table(chart), box);
    });
  }

  charts.forEach(function (chart) {
    var box = document.createElement("div"), title = document.createElement("h3");
    box.className = "chart";
    title.textContent = chart.title;
    [[chart.unit, ""], [chart.note, "bad"]].forEach(function (pair) {
      if (!pair[0]) return;
      var small = document.createElement("small");
      small.textContent = pair[0];
      small.className = pair[1];
      title.appendChild(small);
    });
    box.appendChild(title);
    root.appendChild(box);
  });
  draw();

  var waiting = null, width = root.clientWidth;
  function again() { clearTimeout(waiting); waiting = setTimeout(draw, 120); }
  window.addEventListener("resize", function () {
    if (root.clientWidth !== width) { width = root.clientWidth; again(); }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  matchMedia("print").addEventListener("change", draw);   // paper is white whatever the screen is
})();
