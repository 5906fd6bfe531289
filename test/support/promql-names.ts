/** Compares the metrics and labels of PromQL expressions with scrapes. */

/** Prometheus adds them to every series. */
const SCRAPE_LABELS = ['instance', 'job'];
const WORDS: ReadonlySet<string> = new Set([
  'sum',
  'count',
  'min',
  'max',
  'avg',
  'rate',
  'increase',
  'histogram_quantile',
  'and',
  'or',
]);

/** The labels of each series name in Prometheus text. */
export function readSeries(text: string): Map<string, Set<string>> {
  const series = new Map<string, Set<string>>();
  for (const [, name = '', list = ''] of text.matchAll(/^([a-z]\w*)(?:{(.*)})? \S+$/gm)) {
    const labels = series.get(name) ?? new Set(SCRAPE_LABELS);
    for (const [, label = ''] of list.matchAll(/(\w+)="/g)) labels.add(label);
    series.set(name, labels);
  }
  return series;
}

/** @returns the problems: unknown metrics, and labels that a metric does not have */
export function checkExpression(
  expression: string,
  series: ReadonlyMap<string, ReadonlySet<string>>,
): string[] {
  const labels = new Set<string>();
  const names = expression
    .replaceAll(/"[^"]*"/g, '""')
    .replaceAll(/\[[^\]]*\]/g, '')
    .replaceAll(/\bby \(([^)]*)\)|{([^}]*)}/g, (_, by?: string, matchers?: string) => {
      for (const [label] of (by ?? matchers ?? '').matchAll(/\w+/g)) labels.add(label);
      return '';
    })
    .match(/[a-zA-Z_]\w*/g);
  const metrics = [...new Set(names)].filter((name) => !WORDS.has(name));
  if (metrics.length === 0) return [`${expression}: no metric`];
  return metrics.flatMap((metric) => {
    const known = series.get(metric);
    if (known === undefined) return [`${metric}: no such metric`];
    const unknown = [...labels].filter((label) => !known.has(label));
    return unknown.map((label) => `${metric}: no label ${label}`);
  });
}
