/** The tables of loaded versions: sizes, how they are stored, norms, and rows of single keys. */
import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { type Connection, requestJson } from '../connection.ts';
import { formatBytes, formatExact, formatPlain } from '../format.ts';
import { Histogram, type HistogramData } from '../histogram.tsx';
import type { LoadedVersion } from '../types.ts';
import { Bar } from './live.tsx';
import { RowLookup } from './row-lookup.tsx';

export function Tables({ connection }: { connection: Connection }): JSX.Element {
  const { base, state } = connection;
  const versions = state.versions ?? [];
  const [chosen, setChosen] = useState<{ version: string; table: string }>();
  const largest = Math.max(
    1,
    ...versions.flatMap(({ tables }) => tables.map(({ bytes }) => bytes)),
  );
  return (
    <>
      <div class="toolbar">
        <h2>Tables</h2>
      </div>
      {versions.length === 0 && <p class="empty">No version is loaded.</p>}
      {versions.map((loaded) => (
        <VersionTables
          key={getName(loaded)}
          base={base}
          loaded={loaded}
          largest={largest}
          chosen={chosen?.version === getName(loaded) ? chosen.table : undefined}
          onChoose={(table) =>
            setChosen(table === undefined ? undefined : { version: getName(loaded), table })
          }
        />
      ))}
      <RowLookup base={base} versions={versions.filter(({ tables }) => tables.length > 0)} />
    </>
  );
}

function getName({ model, version }: LoadedVersion): string {
  return `${model} ${version}`;
}

function VersionTables({
  base,
  loaded: { model, version, tables, isPlain },
  largest,
  chosen,
  onChoose,
}: {
  base: string;
  loaded: LoadedVersion;
  largest: number;
  chosen: string | undefined;
  onChoose: (table: string | undefined) => void;
}): JSX.Element {
  return (
    <section class="card">
      <h3>
        {model}, version {version}
      </h3>
      {tables.length === 0 && (
        <p class="empty">
          {isPlain ? 'A plain model has no tables.' : 'This version has no tables.'}
        </p>
      )}
      {tables.length > 0 && (
        <div class="scroll">
          <table class="stacks">
            <thead>
              <tr>
                <th>Table</th>
                <th class="number">Rows</th>
                <th class="number">Dim</th>
                <th>Type</th>
                <th class="number">Shards</th>
                <th class="number">Layers</th>
                <th class="grow">Size</th>
                <th />
              </tr>
            </thead>
            <tbody>
              {tables.map(({ name, rows, dim, dtype, shardNum, layers, bytes }) => (
                <tr key={name}>
                  <td class="full">{name}</td>
                  <td class="number" data-label="rows">
                    {formatExact(rows)}
                  </td>
                  <td class="number" data-label="dim">
                    {dim}
                  </td>
                  <td>{dtype}</td>
                  <td class="number" data-label="shards">
                    {shardNum}
                  </td>
                  <td class="number" data-label="layers">
                    {layers}
                  </td>
                  <td class="full">
                    <Bar share={bytes / largest} label={formatBytes(bytes)} />
                  </td>
                  <td>
                    <button
                      type="button"
                      class="small"
                      aria-expanded={name === chosen}
                      aria-label={`Layout and norms of ${name}`}
                      onClick={() => onChoose(name === chosen ? undefined : name)}
                    >
                      {name === chosen ? 'Hide' : 'Layout and norms'}
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {chosen !== undefined && (
        <TableDetail key={chosen} base={base} model={model} version={version} table={chosen} />
      )}
    </section>
  );
}

interface TableSample {
  readonly shardsRead: number;
  readonly shardNum: number;
  readonly layouts: readonly {
    readonly kind: string;
    readonly layout: string;
    readonly layers: number;
    readonly rows: number;
    readonly deleted: number;
    readonly rowBytes: number;
    readonly loadFactor: number | null;
    readonly bytes: number;
  }[];
  readonly norms: {
    readonly rows: number;
    readonly notFinite: number;
    readonly zero: number;
    readonly mean: number;
    readonly histogram: HistogramData | null;
  } | null;
}

function TableDetail({
  base,
  model,
  version,
  table,
}: {
  base: string;
  model: string;
  version: string;
  table: string;
}): JSX.Element {
  const [sample, setSample] = useState<TableSample>();
  const [error, setError] = useState('');
  const [count, setCount] = useState(0);
  useEffect(() => {
    const query = new URLSearchParams({ model, version, table });
    requestJson<TableSample>(`${base}/v1/console/table?${query}`).then(setSample, (cause: Error) =>
      setError(cause.message),
    );
  }, [base, model, version, table, count]);
  if (error !== '') return <p class="error">{error}</p>;
  if (sample === undefined) return <p class="empty">Reading a sample …</p>;
  const { layouts, norms, shardsRead, shardNum } = sample;
  return (
    <div class="columns even" data-table={table}>
      <div class="scroll">
        <table>
          <thead>
            <tr>
              <th>Layers</th>
              <th>Layout</th>
              <th class="number">Rows</th>
              <th class="number">Deleted</th>
              <th class="number">Row</th>
              <th class="number">Load factor</th>
            </tr>
          </thead>
          <tbody>
            {layouts.map(({ kind, layout, layers, rows, deleted, rowBytes, loadFactor }) => (
              <tr key={`${kind} ${layout}`}>
                <td>
                  {layers} {kind}
                </td>
                <td>{layout}</td>
                <td class="number">{formatExact(rows)}</td>
                <td class="number">{formatExact(deleted)}</td>
                <td class="number">{rowBytes === 0 ? 'any size' : formatBytes(rowBytes)}</td>
                <td class="number">{formatPlain(loadFactor)}</td>
              </tr>
            ))}
          </tbody>
        </table>
        {shardsRead < shardNum && (
          <p class="muted">
            {shardsRead} of {shardNum} shards were read.
          </p>
        )}
      </div>
      <div>
        {norms === null && <p class="empty">Values of any length have no norm.</p>}
        {norms !== null && norms.histogram !== null && (
          <Histogram
            data={norms.histogram}
            label={`Norms of ${formatExact(norms.rows)} rows`}
            names={[]}
            format={formatPlain}
          />
        )}
        {norms !== null && (
          <p class="muted">
            Mean {formatPlain(norms.mean)}, {formatExact(norms.zero)} zero,{' '}
            {formatExact(norms.notFinite)} not finite{' '}
            <button type="button" class="small" onClick={() => setCount(count + 1)}>
              Another sample
            </button>
          </p>
        )}
      </div>
    </div>
  );
}
