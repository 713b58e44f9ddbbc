// Every cell of a table with a head learns the name of its column, which `pages.css` shows on narrow screens.
for (const table of document.querySelectorAll("article table.docutils")) {
  const names = [...table.querySelectorAll("thead th")].map((cell) => cell.innerText.trim());
  if (!names.length) continue;
  table.classList.add("cards");
  for (const row of table.querySelectorAll("tbody tr"))
    [...row.cells].forEach((cell, i) => (cell.dataset.column = i ? names[i] : ""));
}
