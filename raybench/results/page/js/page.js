// Starts the page: its theme, its tables, what opens a trial.

const theme = document.getElementById("theme");
if (theme) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const name = () => { theme.textContent = isDark() ? "Light page" : "Dark page"; };
  theme.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    name();
  });
  dark.addEventListener("change", name);
  name();
  theme.hidden = false;
}

document.body.append(dialog);
const tables = new Map();
for (const root of document.querySelectorAll(".trials")) {
  tables.set(root.dataset.study, new Trials(root));
}

// Links to a trial, and what stands for one in a picture.
document.addEventListener("click", (event) => {
  const found = event.target.closest("[data-trial]");
  if (!found) return;
  const study = found.dataset.study ?? found.closest("figure")?.id.split("-")[0];
  if (tables.get(study)?.openNamed(found.dataset.trial)) event.preventDefault();
});

function openAddressed() {
  const match = /^#(s\d+)-t(\d+)$/.exec(location.hash);
  if (match) tables.get(match[1])?.openPlace(Number(match[2]));
}
addEventListener("hashchange", openAddressed);
openAddressed();
