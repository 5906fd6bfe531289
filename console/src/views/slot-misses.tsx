/** Lookups without a row by slot: of the last minute, and since the version was loaded. */
import type { JSX } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { formatExact, formatPercent } from '../format.ts';
import type { SlotMisses } from '../types.ts';

const WINDOW_MS = 60_000;
/** The slots with the largest shares are shown first; the others on request. */
const SLOTS_SHOWN = 8;

type Counts = Pick<SlotMisses['slots'][number], 'lookups' | 'unseen' | 'unavailable'>;

interface Reading {
  readonly timeMs: number;
  readonly misses: readonly SlotMisses[];
}

export function SlotMissesCard({
  misses,
  active,
}: {
  misses: readonly SlotMisses[];
  /** Active version by model: the others get no requests. */
  active: ReadonlyMap<string, string>;
}): JSX.Element | null {
  const before = useEarlier(misses);
  const shown = misses.filter(
    ({ model, version, slots }) => slots.length > 0 && active.get(model) === version,
  );
  if (shown.length === 0) return null;
  return (
    <>
      {shown.map((current) => (
        <VersionMisses
          key={`${current.model} ${current.version}`}
          current={current}
          before={before.find(
            ({ model, version }) => model === current.model && version === current.version,
          )}
        />
      ))}
    </>
  );
}

/** The counts of a minute ago, or the first ones that this page got. */
function useEarlier(misses: readonly SlotMisses[]): readonly SlotMisses[] {
  const readings = useRef<Reading[]>([]);
  const [before, setBefore] = useState<readonly SlotMisses[]>([]);
  useEffect(() => {
    const timeMs = Date.now();
    const kept = readings.current.filter((reading) => timeMs - reading.timeMs <= WINDOW_MS);
    readings.current = [...kept, { timeMs, misses }];
    setBefore(readings.current[0]?.misses ?? []);
  }, [misses]);
  return before;
}

function VersionMisses({
  current,
  before,
}: {
  current: SlotMisses;
  before: SlotMisses | undefined;
}): JSX.Element {
  const [showsAll, setShowsAll] = useState(false);
  const slots = current.slots
    .map((all) => {
      const earlier = before?.slots.find(({ slot }) => slot === all.slot);
      return { slot: all.slot, all, recent: subtract(all, earlier) };
    })
    .toSorted(
      (a, b) =>
        getMissShare(b.recent) - getMissShare(a.recent) ||
        getMissShare(b.all) - getMissShare(a.all),
    );
  return (
    <section class="card" data-misses={current.version}>
      <div class="toolbar">
        <h3>
          Lookups without a row by slot
          <small class="muted">
            {current.model} {current.version}, last minute
          </small>
        </h3>
        {slots.length > 0 && (
          <button type="button" class="small" onClick={() => setShowsAll(!showsAll)}>
            {showsAll ? 'Show fewer' : `Show all ${slots.length} slots`}
          </button>
        )}
      </div>
      {slots.every(({ recent }) => recent.unseen + recent.unavailable === 0) && !showsAll ? (
        <p class="empty">
          {slots.some(({ recent }) => recent.lookups > 0)
            ? 'Every lookup of the last minute found a row.'
            : 'No lookups in the last minute.'}
        </p>
      ) : (
        <MissTable slots={slots.slice(0, showsAll ? slots.length : SLOTS_SHOWN)} />
      )}
    </section>
  );
}

interface SlotCounts {
  readonly slot: string;
  readonly recent: Counts;
  readonly all: Counts;
}

function MissTable({ slots }: { slots: readonly SlotCounts[] }): JSX.Element {
  const largest = Math.max(0.01, ...slots.map(({ recent }) => getMissShare(recent)));
  return (
    <div class="scroll">
      <table>
        <thead>
          <tr>
            <th>Slot</th>
            <th class="grow">Unseen and unavailable</th>
            <th class="number">Lookups</th>
            <th class="number">Since the load</th>
          </tr>
        </thead>
        <tbody>
          {slots.map(({ slot, recent, all }) => (
            <tr key={slot}>
              <td>{slot}</td>
              <td>
                <MissBar counts={recent} largest={largest} />
              </td>
              <td class="number">{formatExact(recent.lookups)}</td>
              <td class="number">{formatPercent(100 * getMissShare(all))}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function subtract(all: Counts, earlier: Counts | undefined): Counts {
  return {
    lookups: all.lookups - (earlier?.lookups ?? 0),
    unseen: all.unseen - (earlier?.unseen ?? 0),
    unavailable: all.unavailable - (earlier?.unavailable ?? 0),
  };
}

function getMissShare({ lookups, unseen, unavailable }: Counts): number {
  return lookups <= 0 ? 0 : (unseen + unavailable) / lookups;
}

function MissBar({ counts, largest }: { counts: Counts; largest: number }): JSX.Element {
  const { lookups, unseen, unavailable } = counts;
  const width = (count: number): number => (lookups <= 0 ? 0 : (100 * count) / lookups / largest);
  return (
    <span class="bar">
      <svg viewBox="0 0 100 6" preserveAspectRatio="none" aria-hidden="true">
        <rect class="track" width="100" height="6" />
        <rect class="fteal" width={width(unseen)} height="6" />
        <rect class="fred" x={width(unseen)} width={width(unavailable)} height="6" />
      </svg>
      <span>{formatPercent(100 * getMissShare(counts))}</span>
    </span>
  );
}
