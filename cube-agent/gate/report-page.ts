/**
 * The report of a gate as one self-contained HTML page, without scripts and network access. All
 * text from outside (names, messages, notes) is escaped.
 */
import type { Findings } from './findings.ts';
import { formatNumber, formatPercent, formatSubject, type GateReport } from './gate-report.ts';
import { renderHistogram } from './histogram-chart.ts';
import { compareSlots, listFigures } from './report-text.ts';
import type { Check } from './verdict.ts';

const SLOTS_MAX = 50;

const CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'";

const STYLE = `
:root {
  color-scheme: light dark; --text: #1c2230; --soft: #667085; --line: #dfe3ea;
  --paper: #ffffff; --good: #13795b; --bad: #b3261e; --candidate: #c2410c; --baseline: #9db7d8;
}
@media (prefers-color-scheme: dark) { :root {
  --text: #e6e9ef; --soft: #98a2b3; --line: #333b49; --paper: #14181f; --good: #4fc79d;
  --bad: #ff8a80; --candidate: #fb923c; --baseline: #45658f;
} }
body {
  font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--paper);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
}
h1 { font-size: 1.5rem; margin: 0 0 .25rem; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .5rem; }
p { margin: .15rem 0; }
.soft, caption, th { color: var(--soft); }
.verdict {
  display: inline-block; padding: .05rem .7rem; margin-right: .6rem; border-radius: .4rem;
  color: var(--paper);
}
.verdict.pass { background: var(--good); }
.verdict.fail { background: var(--bad); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 500; }
th, td {
  padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere;
}
.number { text-align: right; white-space: nowrap; }
td.pass { color: var(--good); }
td.fail { color: var(--bad); font-weight: 700; }
tr.fail td { background: color-mix(in srgb, var(--bad) 9%, transparent); }
code { font-size: .85em; color: var(--soft); }
.columns {
  display: grid; gap: 0 2.5rem; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr));
}
svg { width: 100%; height: auto; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
svg .grid { stroke: var(--line); }
svg .baseline { fill: var(--baseline); }
svg .candidate { fill: none; stroke: var(--candidate); stroke-width: 2; stroke-linejoin: round; }
svg g.candidate, svg .difference { fill: var(--candidate); stroke: none; }
.key::before {
  content: ""; display: inline-block; width: .8em; height: .8em; margin: 0 .4em 0 0;
  background: var(--baseline);
}
.key.candidate::before {
  background: none; height: 0; border-top: 2px solid var(--candidate); vertical-align: middle;
}
.key { margin-right: 1.5em; }`;

export function renderHtmlReport(report: GateReport): string {
  const { verdict, at, by, golden, policy, checks, findings, replay } = report;
  const outcome = verdict === 'pass' ? 'Pass' : 'Fail';
  const subject = escapeHtml(formatSubject(report));
  const source = escapeHtml(golden.source);
  const sample = golden.rows === golden.total ? '' : ` of ${golden.total}`;
  return [
    '<!doctype html>',
    '<html lang="en"><head><meta charset="utf-8">',
    `<meta http-equiv="Content-Security-Policy" content="${CONTENT_POLICY}">`,
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    `<title>${outcome}: ${subject}</title><style>${STYLE}</style></head><body>`,
    `<h1><span class="verdict ${verdict}">${outcome}</span>${subject}</h1>`,
    `<p class="soft">${escapeHtml(at)}, by ${escapeHtml(by)} · limits: ${escapeHtml(policy)}</p>`,
    `<p class="soft">${golden.rows}${sample} rows of ${source}, ${golden.labelled} with labels; ` +
      `${replay.requestsPerSecond} requests per second of ${replay.rowsPerRequest} rows to each ` +
      'version</p>',
    '<h2>Checks</h2>',
    renderCheckTable(checks),
    ...(findings === undefined ? [] : renderFindings(findings)),
    '</body></html>',
    '',
  ].join('\n');
}

function renderCheckTable(checks: readonly Check[]): string {
  const rows = checks.map(({ outcome, what, value, threshold, limit, note }) => {
    const word = outcome === 'not checked' ? '–' : outcome;
    const cells = [
      `<td class="${outcome === 'not checked' ? 'soft' : outcome}">${word}</td>`,
      `<td>${escapeHtml(what)}<br><code>${escapeHtml(limit)}</code></td>`,
      `<td class="number">${formatNumber(value)}</td>`,
      `<td class="number">${formatNumber(threshold)}</td>`,
      `<td class="soft">${escapeHtml(note ?? '')}</td>`,
    ];
    return `<tr class="${outcome === 'fail' ? 'fail' : ''}">${cells.join('')}</tr>`;
  });
  const head =
    '<tr><th></th><th>Check</th><th class="number">Value</th>' +
    '<th class="number">Limit</th><th>Note</th></tr>';
  return `<table>${head}${rows.join('\n')}</table>`;
}

function renderFindings(findings: Findings): string[] {
  const { candidate, baseline, scores, differences, furthest } = findings;
  const legend = [
    `<span class="key candidate">candidate, version ${escapeHtml(candidate.version)}</span>`,
    ...(baseline
      ? [`<span class="key">baseline, version ${escapeHtml(baseline.version)}</span>`]
      : []),
  ];
  const parts: string[] = [];
  if (scores !== undefined) {
    const classes = baseline === undefined ? ['baseline'] : ['candidate', 'baseline'];
    parts.push('<h2>Scores</h2>', `<p class="soft">${legend.join('')}</p>`);
    parts.push(renderHistogram(scores, classes));
  }
  if (differences !== undefined) {
    parts.push('<h2>Candidate score minus baseline score, by row</h2>');
    parts.push(renderHistogram(differences, ['difference']));
  }
  const before = baseline === undefined ? [] : listFigures(baseline);
  const figures = listFigures(candidate).map(([name, value], i) => [
    name,
    value,
    before[i]?.[1] ?? '–',
  ]);
  parts.push('<h2>Figures</h2>', renderTable(['', 'Candidate', 'Baseline'], figures));
  const slots = compareSlots(candidate, baseline)
    .slice(0, SLOTS_MAX)
    .map(({ slot, candidate, baseline }) => [
      slot,
      formatPercent(candidate),
      formatPercent(baseline),
    ]);
  const rows = furthest.map((row) => [row.line, row.candidate, row.baseline].map(formatNumber));
  parts.push('<div class="columns">');
  parts.push(
    ...renderSection('Lookups without a row, by slot', ['Slot', 'Candidate', 'Active'], slots),
  );
  parts.push(...renderSection('Rows furthest apart', ['Golden line', 'Candidate', 'Active'], rows));
  parts.push('</div>');
  const failed = candidate.failedLines.map((line) => [
    String(line.line),
    `${line.code} ${line.message}`,
  ]);
  parts.push(...renderSection('Rows the candidate did not answer', ['Golden line', 'Why'], failed));
  return parts;
}

function renderSection(
  title: string,
  head: readonly string[],
  rows: readonly string[][],
): string[] {
  return rows.length === 0
    ? []
    : [`<section><h2>${title}</h2>${renderTable(head, rows)}</section>`];
}

/** The first column is text and the others are numbers; with two columns both are text. */
function renderTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const kind = (column: number): string =>
    column === 0 || head.length < 3 ? '' : ' class="number"';
  const heads = head.map((text, i) => `<th${kind(i)}>${escapeHtml(text)}</th>`).join('');
  const body = rows.map((row) => {
    return `<tr>${row.map((text, i) => `<td${kind(i)}>${escapeHtml(text)}</td>`).join('')}</tr>`;
  });
  return `<table><tr>${heads}</tr>${body.join('\n')}</table>`;
}

const ENTITIES: Readonly<Record<string, string>> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
};

function escapeHtml(text: string): string {
  return text.replaceAll(/[&<>"']/g, (character) => ENTITIES[character] ?? character);
}
