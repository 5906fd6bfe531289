/** A stored report of the gate: verdict, checks against limits, quality and score histograms. */
import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { requestJson } from '../connection.ts';
import { formatCount, formatMs, formatPlain, formatTime } from '../format.ts';
import { Histogram, type HistogramData } from '../histogram.tsx';

interface VersionFindings {
  readonly version: string;
  readonly rowsSent: number;
  readonly rowsFailed: number;
  readonly lookups: number;
  readonly unseen: number;
  readonly scoreMean: number | null;
  readonly latency: { readonly p50Ms: number | null; readonly p99Ms: number | null };
  readonly quality?: {
    readonly auc: number | null;
    readonly logloss: number | null;
    readonly calibration: number | null;
  };
}

export interface GateReport {
  readonly version: string;
  readonly against: string | null;
  readonly at: string;
  readonly by: string;
  readonly verdict: 'pass' | 'fail';
  readonly golden: { readonly rows: number };
  readonly checks: readonly {
    readonly limit: string;
    readonly what: string;
    readonly value?: number | null;
    readonly threshold?: number | null;
    readonly outcome: 'pass' | 'fail' | 'not checked';
    readonly note?: string;
  }[];
  readonly findings?: {
    readonly candidate: VersionFindings;
    readonly baseline?: VersionFindings;
    readonly scores?: HistogramData;
    readonly differences?: HistogramData;
  };
}

/** A report that is read once; undefined while it is read, and without a number. */
export function useGateReport(
  bundle: string,
  version: string,
  run: number | undefined,
): { readonly report: GateReport | undefined; readonly error: string } {
  const [report, setReport] = useState<GateReport>();
  const [error, setError] = useState('');
  useEffect(() => {
    setReport(undefined);
    setError('');
    if (run === undefined) return undefined;
    let isCurrent = true;
    const path = [bundle, version, run].map((part) => encodeURIComponent(part)).join('/');
    requestJson<GateReport>(`/controller/v1/gate-reports/${path}`).then(
      (read) => isCurrent && setReport(read),
      (cause: Error) => isCurrent && setError(cause.message),
    );
    return () => {
      isCurrent = false;
    };
  }, [bundle, version, run]);
  return { report, error };
}

export function GateReportCard({
  bundle,
  version,
  newest,
  onClose,
}: {
  bundle: string;
  version: string;
  /** Number of the newest report. */
  newest: number;
  onClose: () => void;
}): JSX.Element {
  const [chosen, setRun] = useState<number>();
  const run = chosen ?? newest;
  const { report, error } = useGateReport(bundle, version, run);
  return (
    <section class="card" data-report={version}>
      <div class="toolbar">
        <h3>
          Gate report of {bundle} {version}
        </h3>
        {newest > 1 && (
          <select
            aria-label="Report"
            value={run}
            onChange={({ currentTarget }) => setRun(Number(currentTarget.value))}
          >
            {Array.from({ length: newest }, (_, i) => (
              <option key={String(i)} value={newest - i}>
                Report {newest - i} of {newest}
              </option>
            ))}
          </select>
        )}
        <button type="button" onClick={onClose}>
          Close
        </button>
      </div>
      {error !== '' && <p class="error">{error}</p>}
      {report === undefined && error === '' && <p class="empty">Reading …</p>}
      {report !== undefined && <Report report={report} />}
    </section>
  );
}

function Report({ report }: { report: GateReport }): JSX.Element {
  const { version, against, at, by, verdict, golden, checks, findings } = report;
  return (
    <>
      <p>
        <span class={`badge ${verdict === 'pass' ? 'ready' : 'error'}`} data-verdict={verdict}>
          {verdict === 'pass' ? 'passed' : 'failed'}
        </span>{' '}
        Version {version} {against === null ? 'alone' : `against ${against}`} on{' '}
        {formatCount(golden.rows)} rows, by {by}, {formatTime(at)}
      </p>
      <div class="columns even">
        <div class="scroll">
          <table>
            <thead>
              <tr>
                <th class="grow">Check</th>
                <th class="number">Value</th>
                <th class="number">Limit</th>
                <th>Outcome</th>
              </tr>
            </thead>
            <tbody>
              {checks.map(({ limit, what, value, threshold, outcome, note }) => (
                <tr key={limit}>
                  <td>
                    {what}
                    {note !== undefined && <div class="muted">{note}</div>}
                  </td>
                  <td class="number">{formatPlain(value)}</td>
                  <td class="number">{formatPlain(threshold)}</td>
                  <td>
                    <span class={`badge ${OUTCOME_CLASSES[outcome]}`}>{outcome}</span>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        <div class="stack">
          <ScoreHistograms report={report} />
          {findings !== undefined && <Quality versions={[findings.candidate, findings.baseline]} />}
        </div>
      </div>
    </>
  );
}

const OUTCOME_CLASSES = { pass: 'ready', fail: 'error', 'not checked': '' } as const;

export function ScoreHistograms({ report }: { report: GateReport }): JSX.Element | null {
  const { version, against, findings } = report;
  if (findings?.scores === undefined) return null;
  const names = [`version ${version}`, ...(against === null ? [] : [`version ${against}`])];
  return (
    <div class="columns even">
      <Histogram data={findings.scores} label="Scores" names={names} format={formatPlain} />
      {findings.differences !== undefined && (
        <Histogram
          data={findings.differences}
          label="Score differences"
          names={[]}
          format={formatPlain}
        />
      )}
    </div>
  );
}

const ROWS: readonly (readonly [string, (of: VersionFindings) => string])[] = [
  ['AUC', ({ quality }) => formatDigits(quality?.auc)],
  ['Logloss', ({ quality }) => formatDigits(quality?.logloss)],
  ['Calibration', ({ quality }) => formatDigits(quality?.calibration)],
  ['Mean score', ({ scoreMean }) => formatDigits(scoreMean)],
  ['Rows failed', ({ rowsFailed }) => formatCount(rowsFailed)],
  [
    'Unseen lookups',
    ({ unseen, lookups }) => `${formatPlain((100 * unseen) / Math.max(1, lookups))} %`,
  ],
  ['Latency p50', ({ latency }) => formatMs(latency.p50Ms)],
  ['Latency p99', ({ latency }) => formatMs(latency.p99Ms)],
];

function formatDigits(value: number | null | undefined): string {
  return value === null || value === undefined ? '–' : value.toFixed(4);
}

function Quality({
  versions,
}: {
  versions: readonly (VersionFindings | undefined)[];
}): JSX.Element {
  const known = versions.filter((findings) => findings !== undefined);
  return (
    <table>
      <thead>
        <tr>
          <th />
          {known.map(({ version }) => (
            <th key={version} class="number">
              Version {version}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {ROWS.map(([name, format]) => (
          <tr key={name}>
            <td>{name}</td>
            {known.map((findings) => (
              <td key={findings.version} class="number">
                {format(findings)}
              </td>
            ))}
          </tr>
        ))}
      </tbody>
    </table>
  );
}
