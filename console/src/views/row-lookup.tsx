/** A feature or a key: its key, its shard, and its rows as bars. */
import type { JSX } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { requestJson } from '../connection.ts';
import { formatPlain } from '../format.ts';
import type { LoadedVersion } from '../types.ts';

interface FoundRows {
  readonly version: string;
  readonly key: string;
  readonly hex: string;
  readonly shard: number;
  readonly shardNum: number;
  readonly rows: readonly {
    readonly table: string;
    readonly outcome: 'hit' | 'unseen' | 'unavailable';
    readonly dim: number;
    readonly norm: number | null;
    readonly row: readonly (number | null)[];
  }[];
}

const BY_KEY = '';

export function RowLookup({
  base,
  versions,
}: {
  base: string;
  versions: readonly LoadedVersion[];
}): JSX.Element | null {
  const names = versions.map(({ model, version }) => `${model} ${version}`);
  const [chosen, setChosen] = useState<string>();
  const [slots, setSlots] = useState<readonly string[]>([]);
  const [slot, setSlot] = useState<string>();
  const [text, setText] = useState('');
  const [found, setFound] = useState<FoundRows>();
  const [error, setError] = useState('');
  const at = Math.max(0, names.indexOf(chosen ?? ''));
  const { model = '', version = '' } = versions[at] ?? {};
  useEffect(() => {
    setFound(undefined);
    if (model === '') return;
    const path = `${base}/v1/models/${encodeURIComponent(model)}/features`;
    requestJson<{ slots: readonly { name: string }[] }>(path).then(
      (features) => setSlots(features.slots.map(({ name }) => name)),
      () => setSlots([]),
    );
  }, [base, model, version]);
  if (versions.length === 0) return null;
  const used = slot ?? slots[0] ?? BY_KEY;
  const lookUp = async (event: Event): Promise<void> => {
    event.preventDefault();
    const asked = used === BY_KEY ? { key: text.trim() } : { slot: used, feature: text };
    const query = new URLSearchParams({ model, version, ...asked });
    try {
      setFound(await requestJson<FoundRows>(`${base}/v1/console/row?${query}`));
      setError('');
    } catch (cause) {
      setFound(undefined);
      setError((cause as Error).message);
    }
  };
  return (
    <section class="card" data-lookup>
      <h3>Look up a row</h3>
      <form class="lookup" onSubmit={lookUp}>
        {names.length > 1 && (
          <label>
            Version
            <select
              name="version"
              value={names[at]}
              onChange={({ currentTarget }) => setChosen(currentTarget.value)}
            >
              {names.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          </label>
        )}
        <label>
          By
          <select
            name="slot"
            value={used}
            onChange={({ currentTarget }) => setSlot(currentTarget.value)}
          >
            {slots.map((name) => (
              <option key={name} value={name}>
                slot {name}
              </option>
            ))}
            <option value={BY_KEY}>key</option>
          </select>
        </label>
        <label class="wide-field">
          {used === BY_KEY ? 'Key' : 'Feature'}
          <input
            name="feature"
            required
            spellcheck={false}
            autocomplete="off"
            placeholder={used === BY_KEY ? '12345 or 0x3039' : ''}
            value={text}
            onInput={({ currentTarget }) => setText(currentTarget.value)}
          />
        </label>
        <button type="submit" class="primary">
          Look up
        </button>
      </form>
      {error !== '' && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {found !== undefined && <Found found={found} feature={used === BY_KEY ? undefined : text} />}
    </section>
  );
}

function Found({ found, feature }: { found: FoundRows; feature: string | undefined }): JSX.Element {
  const { key, hex, shard, shardNum, rows } = found;
  return (
    <>
      <ol class="path" aria-live="polite">
        {feature !== undefined && (
          <li>
            <span class="muted">feature</span>
            <b>{feature}</b>
          </li>
        )}
        <li>
          <span class="muted">key</span>
          <b data-found="key">{key}</b>
          <span class="muted">{hex}</span>
        </li>
        <li>
          <span class="muted">shard</span>
          <b data-found="shard">
            {shard} of {shardNum}
          </b>
          <span class="muted">key mod {shardNum}</span>
        </li>
      </ol>
      {rows.map(({ table, outcome, dim, norm, row }) => (
        <div key={table} class="found-row" data-outcome={outcome}>
          <p>
            <b>{table}</b> <em class={`outcome ${outcome}`}>{OUTCOMES[outcome]}</em>{' '}
            {outcome !== 'unavailable' && (
              <span class="muted">
                {dim} elements, norm {formatPlain(norm)}
              </span>
            )}
          </p>
          {outcome !== 'unavailable' && <RowBars row={row} label={`Row of ${table}`} />}
        </div>
      ))}
    </>
  );
}

const OUTCOMES = {
  hit: 'hit',
  unseen: 'not in the table: its default row',
  unavailable: 'no replica answered',
} as const;

/** Elements as bars up and down from zero. */
function RowBars({ row, label }: { row: readonly (number | null)[]; label: string }): JSX.Element {
  const largest = Math.max(...row.map((value) => Math.abs(value ?? 0)), 1e-9);
  const height = (value: number | null): number => (48 * Math.abs(value ?? 0)) / largest;
  return (
    <figure class="row-bars">
      <svg viewBox={`0 0 ${row.length} 100`} preserveAspectRatio="none" role="img">
        <title>{label}</title>
        {row.map((value, i) => (
          <rect
            key={String(i)}
            class={(value ?? 0) < 0 ? 'negative' : 'positive'}
            x={i + 0.08}
            width={0.84}
            y={(value ?? 0) < 0 ? 50 : 50 - height(value)}
            height={height(value)}
          >
            <title>
              {i}: {value ?? 'not finite'}
            </title>
          </rect>
        ))}
      </svg>
      <figcaption class="muted">
        <span>0</span>
        <span>±{formatPlain(largest)}</span>
        <span>{row.length - 1}</span>
      </figcaption>
    </figure>
  );
}
