/** Two versions side by side: tables, changed rows on request, and the scores of the gate. */
import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { requestJson } from '../connection.ts';
import { formatBytes, formatExact } from '../format.ts';
import type { Bundle, BundleVersion } from '../types.ts';
import { ScoreHistograms, useGateReport } from './gate-report.tsx';

interface TableChanges {
  readonly table: string;
  readonly added: number;
  readonly removed: number;
  readonly changed: number;
}

export function Comparison({ bundle }: { bundle: Bundle }): JSX.Element | null {
  const { versions } = bundle;
  const active = bundle.channels.at(-1)?.history.at(-1)?.version;
  const [left, setLeft] = useState(active ?? '');
  const [right, setRight] = useState(versions.find(({ version }) => version !== active)?.version);
  if (versions.length < 2) return null;
  const find = (name: string | undefined): BundleVersion | undefined =>
    versions.find(({ version }) => version === name);
  const [from, to] = [find(left) ?? versions[1], find(right) ?? versions[0]];
  if (from === undefined || to === undefined) return null;
  const select = (value: string, onChange: (version: string) => void, label: string) => (
    <select
      aria-label={label}
      value={value}
      onChange={({ currentTarget }) => onChange(currentTarget.value)}
    >
      {versions.map(({ version }) => (
        <option key={version}>{version}</option>
      ))}
    </select>
  );
  return (
    <section class="card" data-comparison={`${from.version} ${to.version}`}>
      <div class="toolbar">
        <h3>Compare versions of {bundle.bundle}</h3>
        <span class="together">
          <span class="muted">from</span>
          {select(from.version, setLeft, 'From version')}
          <span class="muted">to</span>
          {select(to.version, setRight, 'To version')}
        </span>
      </div>
      {from.version === to.version ? (
        <p class="empty">Choose two versions.</p>
      ) : (
        <Changes key={`${from.version} ${to.version}`} bundle={bundle} from={from} to={to} />
      )}
    </section>
  );
}

function Changes({
  bundle,
  from,
  to,
}: {
  bundle: Bundle;
  from: BundleVersion;
  to: BundleVersion;
}): JSX.Element {
  const [changes, setChanges] = useState<readonly TableChanges[]>();
  const [error, setError] = useState('');
  const [isBusy, setBusy] = useState(false);
  const names = [...new Set([from, to].flatMap(({ tables }) => tables.map(({ name }) => name)))];
  const compare = async (): Promise<void> => {
    setBusy(true);
    const path = [bundle.bundle, from.version, to.version].map(encodeURIComponent).join('/');
    try {
      const { tables } = await requestJson<{ tables: TableChanges[] }>(
        `/controller/v1/changes/${path}`,
      );
      setChanges(tables);
      setError('');
    } catch (cause) {
      setError((cause as Error).message);
    }
    setBusy(false);
  };
  return (
    <>
      <div class="scroll">
        <table class="stacks">
          <thead>
            <tr>
              <th>Table</th>
              <th class="number">Rows</th>
              <th class="number">Size</th>
              <th class="number">Rows added</th>
              <th class="number">removed</th>
              <th class="number">changed</th>
            </tr>
          </thead>
          <tbody>
            {names.map((name) => {
              const before = from.tables.find((table) => table.name === name);
              const after = to.tables.find((table) => table.name === name);
              const rows = changes?.find(({ table }) => table === name);
              return (
                <tr key={name}>
                  <td class="full">{name}</td>
                  <td class="number" data-label="rows">
                    {formatStep(before?.rows, after?.rows, formatExact)}
                  </td>
                  <td class="number">{formatStep(before?.bytes, after?.bytes, formatBytes)}</td>
                  <td class="number" data-label="added" data-change="added">
                    {formatExact(rows?.added)}
                  </td>
                  <td class="number" data-label="removed" data-change="removed">
                    {formatExact(rows?.removed)}
                  </td>
                  <td class="number" data-label="changed" data-change="changed">
                    {formatExact(rows?.changed)}
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {changes === undefined && (
        <p class="buttons">
          <button type="button" class="small" disabled={isBusy} onClick={compare}>
            {isBusy ? 'Reading both versions …' : 'Count changed rows'}
          </button>
        </p>
      )}
      {error !== '' && <p class="error">{error}</p>}
      <Scores bundle={bundle} from={from.version} to={to.version} />
    </>
  );
}

/** "5 → 7", or one of them when they are equal. */
function formatStep(
  before: number | undefined,
  after: number | undefined,
  format: (value: number) => string,
): string {
  const text = (value: number | undefined): string =>
    value === undefined ? 'none' : format(value);
  return text(before) === text(after) ? text(after) : `${text(before)} → ${text(after)}`;
}

/** The histograms of the newest gate report that compares the versions, in either direction. */
function Scores({
  bundle,
  from,
  to,
}: {
  bundle: Bundle;
  from: string;
  to: string;
}): JSX.Element | null {
  const forward = useGateReport(bundle.bundle, to, bundle.gateReports[to]);
  const backward = useGateReport(bundle.bundle, from, bundle.gateReports[from]);
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 500);
    return () => clearTimeout(timer);
  }, []);
  if (forward.report?.against === from) return <ScoreHistograms report={forward.report} />;
  if (backward.report?.against === to) return <ScoreHistograms report={backward.report} />;
  if (!isLate) return null;
  return (
    <p class="muted">
      Score histograms appear after the gate of one of the two versions, with the other one active.
    </p>
  );
}
