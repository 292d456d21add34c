// Elements and tables. Text gets into the page as text only: names are whatever somebody called his database.
export const by = <E extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as E;

type Child = Node | string;
export function make<K extends keyof HTMLElementTagNameMap>(tag: K, attributes: Record<string, string> = {},
                                                             ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function text(element: Element, value: string) {
  if (element.textContent !== value) element.textContent = value;
}

// Changes the children to be one for each item. Those of the same key stay the same element: with its focus, selection.
export function each<T>(parent: Element, items: readonly T[], key: (item: T) => string, create: (item: T) => HTMLElement,
                        update: (element: HTMLElement, item: T) => void) {
  const old = new Map<string, HTMLElement>();
  for (const child of [...parent.children] as HTMLElement[]) old.set(child.dataset.key ?? "", child);
  let place = parent.firstElementChild;
  for (const item of items) {
    const k = key(item);
    let element = old.get(k);
    if (element) old.delete(k);
    else (element = create(item)).dataset.key = k;
    update(element, item);
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const element of old.values()) element.remove();
}

export interface Column<T> {
  name: string;
  title: string;
  help?: string;
  number?: boolean;
  few?: boolean;  // not shown where there is little room
  value: (item: T) => string | number | null;
  shown?: (item: T) => string;
  create?: (item: T) => HTMLElement | SVGElement;  // instead of text; then `update`
  update?: (cell: HTMLElement, item: T) => void;
}

export class Table<T> {
  private readonly body: HTMLElement;
  constructor(id: string, private readonly columns: Column<T>[], private readonly key: (item: T) => string,
              private readonly nothing: string) {
    const table = by<HTMLTableElement>(id);
    this.body = table.tBodies[0];
    const row = make("tr");
    for (const c of columns) {
      const th = make("th", { scope: "col", class: this.classes(c) }, c.title);
      if (c.help) th.title = c.help;
      row.append(th);
    }
    table.tHead!.replaceChildren(row);
  }

  show(items: readonly T[], mark?: (item: T) => string) {
    if (!items.length) {
      this.body.replaceChildren(make("tr", {}, make("td", { class: "empty", colspan: String(this.columns.length) },
                                                     this.nothing)));
      return;
    }
    each(this.body, items, this.key, (item) => this.row(item), (row, item) => {
      row.className = mark?.(item) ?? "";
      this.columns.forEach((c, i) => {
        const cell = row.children[i] as HTMLElement;
        const value = c.value(item);
        cell.dataset.value = value === null ? "" : String(value);
        if (c.create) c.update?.(cell, item);
        else text(cell.firstElementChild!, c.shown ? c.shown(item) : value === null ? "" : String(value));
        if (!c.create && !c.number && typeof value === "string" && value.length > 24) cell.title = value;
      });
    });
  }

  private row(item: T) {
    const row = make("tr");
    for (const c of this.columns) {
      const cell = make("td", { class: this.classes(c), "data-col": c.name }, c.create ? c.create(item) : make("bdi"));
      row.append(cell);
    }
    return row;
  }

  private classes(c: Column<T>) {
    return [c.number ? "n" : "", c.few ? "few" : "", c.name === "value" ? "value" : ""].join(" ").trim();
  }
}

// ---- numbers for people ----

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (n: number) => (n < 100_000 ? whole.format(n) : short.format(n));
export const rate = (n: number | undefined) =>
  n === undefined ? "–" : n > 0 && n < 10 ? digits.format(n) : n < 10_000 ? whole.format(n) : short.format(n);
export const counted = (n: number, one: string) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;
export const percent = (share: number) => `${whole.format(share * 100)} %`;

export function duration(us: number | undefined) {
  if (us === undefined) return "–";
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${digits.format(us / 1e3)} ms`;
  if (us < 120e6) return `${digits.format(us / 1e6)} s`;
  return us < 7200e6 ? `${whole.format(us / 60e6)} min` : `${whole.format(us / 3600e6)} h`;
}

export function bytes(n: number | undefined) {
  if (n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB"];
  let i = 0;
  while (n >= 1000 && i < units.length - 1) n /= 1000, ++i;
  return `${digits.format(n)} ${units[i]}/s`;
}
