/** A form for the features of a row, the prediction, and the same call as code. */
import type { JSX } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { createSnippets } from '../call-snippets.ts';
import { type Connection, requestJson } from '../connection.ts';
import { formatMs } from '../format.ts';
import { type Features, type Fields, type JsonRow, toFields, toRow } from '../row-form.ts';

interface Prediction {
  readonly version: string;
  readonly probabilities: readonly number[];
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: boolean;
  readonly slots?: readonly { slot: string; hit: number; unseen: number; unavailable: number }[];
  readonly timings?: {
    readonly queue_micros: number;
    readonly lookup_micros: number;
    readonly infer_micros: number;
  };
}

interface Examples {
  readonly source: 'golden' | 'synthetic';
  readonly rows: readonly JsonRow[];
}

/** What the process answered to a row. */
interface Answer {
  readonly fields: Fields;
  readonly prediction?: Prediction;
  readonly error?: string;
}

export function Predict({ connection }: { connection: Connection }): JSX.Element {
  const { base, origin, state } = connection;
  const plain = new Set(
    (state.versions ?? []).filter(({ isPlain }) => isPlain).map(({ model }) => model),
  );
  const all = (state.models ?? []).map(({ model }) => model);
  const models = all.filter((name) => !plain.has(name));
  const [chosen, setModel] = useState<string>();
  const model = chosen ?? models[0] ?? '';
  const active = state.models?.find((candidate) => candidate.model === model)?.active;
  const [features, setFeatures] = useState<Features>();
  const [examples, setExamples] = useState<Examples>();
  const [error, setError] = useState('');
  const isLost = connection.error !== undefined;
  // Another version has other features.
  useEffect(() => {
    if (model === '' || isLost) return;
    const name = encodeURIComponent(model);
    Promise.all([
      requestJson<Features>(`${base}/v1/models/${name}/features`),
      requestJson<Examples>(`${base}/v1/console/examples?model=${name}`),
    ]).then(
      ([spec, rows]) => {
        setFeatures(spec);
        setExamples(rows);
        setError('');
      },
      (cause: Error) => setError(cause.message),
    );
  }, [base, model, active, isLost]);
  return (
    <>
      <div class="toolbar">
        <h2>Predict</h2>
        {models.length > 1 && (
          <select
            aria-label="Model"
            value={model}
            onChange={({ currentTarget }) => setModel(currentTarget.value)}
          >
            {models.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        )}
      </div>
      {error !== '' && !isLost && (
        <p class="banner" role="alert">
          {error}
        </p>
      )}
      {features !== undefined && examples !== undefined && (
        <RowForm
          key={model}
          base={base}
          origin={origin}
          isLost={isLost}
          model={model}
          features={features}
          examples={examples}
        />
      )}
      {models.length === 0 && (
        <p class="empty">
          {all.length === 0
            ? 'No model is loaded.'
            : `${all.join(', ')}: plain models have no slots. Call them with tensors, over KServe v2 ` +
              'or TensorFlow Serving.'}
        </p>
      )}
    </>
  );
}

function RowForm({
  base,
  origin,
  isLost,
  model,
  features,
  examples,
}: {
  base: string;
  origin: string;
  /** The page has no connection, and says so. */
  isLost: boolean;
  model: string;
  features: Features;
  examples: Examples;
}): JSX.Element {
  const [example, setExample] = useState(0);
  const [fields, setFields] = useState(() => toFields(features, examples.rows[0]));
  const [answer, setAnswer] = useState<Answer>();
  const [isBusy, setBusy] = useState(false);
  // An error is out of date when the connection is lost, and when it is back.
  useEffect(() => setAnswer((known) => (known?.error ? undefined : known)), [isLost]);
  const row = useMemo(() => toRow(features, fields), [features, fields]);
  const choose = (index: number): void => {
    setExample(index);
    setFields(toFields(features, examples.rows[index]));
  };
  const predict = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      const name = encodeURIComponent(model);
      const path = `${base}/v1/ctr:predict?model=${name}&detail=true&timings=true`;
      const prediction = await requestJson<Prediction>(path, { rows: [row] });
      setAnswer({ fields, prediction });
    } catch (cause) {
      setAnswer({ fields, error: (cause as Error).message });
    }
    setBusy(false);
  };
  // An answer is shown only beside the fields that it is for.
  const { prediction, error = '' } = answer?.fields === fields ? answer : {};
  const outcomes = new Map(prediction?.slots?.map((slot) => [slot.slot, slot]));
  const set = (name: string, text: string): void => setFields({ ...fields, [name]: text });
  return (
    <div class="columns">
      <form class="card" onSubmit={predict}>
        <div class="toolbar">
          <label class="inline">
            Example row
            <select
              name="example"
              value={example}
              onChange={({ currentTarget }) => choose(Number(currentTarget.value))}
            >
              {examples.rows.map((_, i) => (
                <option key={String(i)} value={i}>
                  {i + 1} of {examples.rows.length}, {examples.source}
                </option>
              ))}
            </select>
          </label>
          <button type="button" onClick={() => setFields({})}>
            Clear
          </button>
          <button type="submit" class="primary" disabled={isBusy}>
            Predict
          </button>
        </div>
        {(features.dense?.features.length ?? 0) > 0 && <h3>Dense features</h3>}
        <div class="fields">
          {features.dense?.features.map(({ name }) => (
            <Field key={name} name={name} value={fields[name] ?? ''} onInput={set} isNumber />
          ))}
        </div>
        <h3>Slots</h3>
        <div class="fields">
          {features.slots.map(({ name }) => (
            <Field
              key={name}
              name={name}
              value={fields[name] ?? ''}
              onInput={set}
              outcome={describeOutcome(outcomes.get(name))}
            />
          ))}
        </div>
      </form>
      <div class="stack">
        {error !== '' && !isLost && (
          <p class="banner" role="alert">
            {error}
          </p>
        )}
        <Result prediction={prediction} />
        <Snippets origin={origin} model={model} row={row} />
      </div>
    </div>
  );
}

type Outcome = 'hit' | 'unseen' | 'unavailable' | '';

function describeOutcome(
  slot: { hit: number; unseen: number; unavailable: number } | undefined,
): Outcome {
  if (slot === undefined) return '';
  if (slot.unavailable > 0) return 'unavailable';
  return slot.unseen > 0 ? 'unseen' : slot.hit > 0 ? 'hit' : '';
}

function Field({
  name,
  value,
  onInput,
  isNumber = false,
  outcome = '',
}: {
  name: string;
  value: string;
  onInput: (name: string, text: string) => void;
  isNumber?: boolean;
  outcome?: Outcome;
}): JSX.Element {
  return (
    <label class="field">
      <span>
        {name} {outcome !== '' && <em class={`outcome ${outcome}`}>{outcome}</em>}
      </span>
      <input
        name={name}
        inputMode={isNumber ? 'decimal' : 'text'}
        spellcheck={false}
        autocomplete="off"
        placeholder="missing"
        value={value}
        onInput={({ currentTarget }) => onInput(name, currentTarget.value)}
      />
    </label>
  );
}

function Result({ prediction }: { prediction: Prediction | undefined }): JSX.Element {
  if (prediction === undefined) {
    return (
      <section class="card result">
        <h3>Prediction</h3>
        <p class="empty">Press Predict to score the row.</p>
      </section>
    );
  }
  const { version, probabilities, slots = [], timings, degraded } = prediction;
  const probability = probabilities[0] ?? 0;
  const total = (name: 'hit' | 'unseen' | 'unavailable'): number =>
    slots.reduce((sum, slot) => sum + slot[name], 0);
  return (
    <section class="card result" aria-live="polite">
      <h3>Prediction</h3>
      <div class="probability">
        <b data-result="probability">{(100 * probability).toFixed(2)} %</b>
        <span>
          click probability
          <br />
          <span class="muted">
            {probability.toPrecision(6)} · version <span data-result="version">{version}</span>
          </span>
        </span>
      </div>
      <meter min={0} max={1} value={probability} aria-label="Click probability" />
      <p>
        {(['hit', 'unseen', 'unavailable'] as const).map((name) => (
          <em key={name} class={`outcome ${total(name) > 0 ? name : 'muted'}`}>
            {total(name)} {name}{' '}
          </em>
        ))}
        {degraded && <strong class="bad"> degraded</strong>}
      </p>
      <MissedSlots slots={slots} />
      {timings !== undefined && (
        <Stages
          stages={[
            ['queue', timings.queue_micros / 1_000, 'orange'],
            ['lookup', timings.lookup_micros / 1_000, 'teal'],
            ['graph', timings.infer_micros / 1_000, 'blue'],
          ]}
        />
      )}
    </section>
  );
}

/** The slots whose keys had no row, by outcome. */
function MissedSlots({ slots }: { slots: NonNullable<Prediction['slots']> }): JSX.Element {
  const unseen = slots.filter((slot) => slot.unseen > 0).map(({ slot }) => slot);
  const unavailable = slots.filter((slot) => slot.unavailable > 0).map(({ slot }) => slot);
  return (
    <>
      {unseen.length > 0 && (
        <p>
          Not in the table, default row used: <b>{unseen.join(', ')}</b>
        </p>
      )}
      {unavailable.length > 0 && (
        <p class="bad">
          No replica answered, default row used: <b>{unavailable.join(', ')}</b>
        </p>
      )}
    </>
  );
}

type Stage = readonly [name: string, ms: number, color: string];

/** The times as one bar of parts. */
function Stages({ stages }: { stages: readonly Stage[] }): JSX.Element {
  const total = stages.reduce((sum, [, ms]) => sum + ms, 0) || 1;
  let left = 0;
  return (
    <div class="stages">
      <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
        {stages.map(([name, ms, color]) => {
          const width = (100 * ms) / total;
          left += width;
          return <rect key={name} class={`f${color}`} x={left - width} width={width} height="8" />;
        })}
      </svg>
      <ul class="legend">
        {stages.map(([name, ms, color]) => (
          <li key={name}>
            <i class={`dot c${color}`} />
            {name} <b>{formatMs(ms)}</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Snippets({
  origin,
  model,
  row,
}: {
  origin: string;
  model: string;
  row: JsonRow;
}): JSX.Element {
  const [language, setLanguage] = useState('curl');
  const [copied, setCopied] = useState(false);
  const snippets = createSnippets(origin, model, row);
  const text = snippets[language] ?? '';
  const copy = async (): Promise<void> => {
    await navigator.clipboard.writeText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1_500);
  };
  return (
    <section class="card">
      <div class="toolbar">
        <h3>The same call</h3>
        <fieldset class="segments" aria-label="Language">
          {Object.keys(snippets).map((name) => (
            <button
              key={name}
              type="button"
              aria-pressed={name === language}
              onClick={() => setLanguage(name)}
            >
              {name}
            </button>
          ))}
        </fieldset>
        <button type="button" onClick={copy}>
          {copied ? 'Copied' : 'Copy'}
        </button>
      </div>
      <pre data-snippet={language}>{text}</pre>
    </section>
  );
}
