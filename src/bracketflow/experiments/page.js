"use strict";
(() => {
  const buttons = [...document.querySelectorAll("button.chip")];
  const rows = [...document.querySelectorAll("#all-claims tbody tr")];
  for (const button of buttons) {
    button.addEventListener("click", () => {
      const wanted = button.getAttribute("aria-pressed") !== "true";
      for (const other of buttons) other.setAttribute("aria-pressed", "false");
      button.setAttribute("aria-pressed", String(wanted));
      for (const row of rows) {
        row.hidden = wanted && row.dataset.verdict !== button.dataset.verdict;
      }
    });
  }
})();
