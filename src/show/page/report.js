
(function () {
  "use strict";
  var box = document.getElementById("filter");
  var table = document.getElementById("ops");
  if (!box || !table) return;
  var words = document.getElementById("words");
  var bad = document.getElementById("only-bad");
  var shown = document.getElementById("shown");
  var rows = Array.prototype.slice.call(table.tBodies[0].rows);
  var texts = rows.map(function (row) { return row.textContent.toLowerCase(); });
  function apply() {
    var wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    var count = 0;
    rows.forEach(function (row, i) {
      var fits = wanted.every(function (word) { return texts[i].indexOf(word) >= 0; });
      if (bad.checked && !row.classList.contains("bad")) fits = false;
      row.hidden = !fits;
      if (fits) count += 1;
    });
    shown.textContent = count + " of " + rows.length;
  }
  box.hidden = false;
  words.addEventListener("input", apply);
  bad.addEventListener("change", apply);
  apply();
})();
