const box = document.getElementById('sentences');
const all = [...box.children];
const [day, order, only, word] = ['day', 'order', 'only', 'word'].map(id => document.getElementById(id));
for (const name of [...new Set(all.map(one => one.dataset.day))]) day.add(new Option(name, name));
function show() {
  let count = 0;
  for (const one of all) {
    const text = one.firstElementChild.textContent.toLowerCase();
    const wanted = (!day.value || one.dataset.day === day.value)
      && (!only.checked || one.dataset.errors !== '0') && text.includes(word.value.toLowerCase());
    one.hidden = !wanted;
    count += wanted;
  }
  const key = order.value;
  box.append(...all.sort((a, b) => (key === 'errors' ? b.dataset.errors - a.dataset.errors : 0)
    || a.dataset.number - b.dataset.number));
  document.getElementById('count').textContent = count + ' of ' + all.length;
}
for (const control of [day, order, only, word]) control.addEventListener('input', show);
document.querySelector('.controls').hidden = false;
show();
