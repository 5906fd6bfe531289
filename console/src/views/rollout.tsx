/** Each rollout as its states in order, with the time in each, and what it waits for. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { Connection } from '../connection.ts';
import { type Action, ActionDialog } from '../dialog.tsx';
import { formatDuration, formatExact, formatMs, formatTime } from '../format.ts';
import type { Bundle, Readings, Rollout } from '../types.ts';

const STATES = ['seen', 'staging', 'staged', 'gating', 'activating', 'active'];
const ENDED = ['failed', 'rolled-back', 'quarantined', 'retired'];

export function RolloutView({ connection }: { connection: Connection }): JSX.Element {
  const [action, setAction] = useState<Action>();
  const bundles = connection.state.bundles ?? [];
  const isEmpty = bundles.every(({ rollouts }) => rollouts.length === 0);
  return (
    <>
      <div class="toolbar">
        <h2>Rollout</h2>
      </div>
      {isEmpty && (
        <p class="empty">No rollout has been started. Start one in Versions, with Roll out.</p>
      )}
      {bundles.flatMap((bundle) =>
        bundle.rollouts
          .toSorted((a, b) => lastTime(b) - lastTime(a))
          .map((rollout) => (
            <RolloutCard
              key={`${bundle.bundle} ${rollout.version}`}
              bundle={bundle}
              rollout={rollout}
              onAction={setAction}
            />
          )),
      )}
      {bundles.map((bundle) => (
        <Policy key={bundle.bundle} bundle={bundle} />
      ))}
      {action !== undefined && (
        <ActionDialog
          action={action}
          connection={connection}
          onClose={() => setAction(undefined)}
        />
      )}
    </>
  );
}

function lastTime({ entries }: Rollout): number {
  return Date.parse(entries.at(-1)?.at ?? '') || 0;
}

function RolloutCard({
  bundle,
  rollout,
  onAction,
}: {
  bundle: Bundle;
  rollout: Rollout;
  onAction: (action: Action) => void;
}): JSX.Element {
  const { version, entries, why, replicas } = rollout;
  const state = entries.at(-1)?.state ?? rollout.state;
  const canAbort = STATES.includes(state) && state !== 'active';
  const ending = entries.filter((entry) => ENDED.includes(entry.state)).at(-1);
  const abort: Action = {
    title: `Abort the rollout of ${version}`,
    text: 'The rollout ends, and channels that it moved go back.',
    path: '/controller/v1/actions/abort',
    body: { bundle: bundle.bundle, version },
    isDangerous: true,
  };
  return (
    <section class="card rollout" data-rollout={version} data-state={state}>
      <div class="toolbar">
        <h3>
          {bundle.bundle} {version}
          <Started rollout={rollout} />
        </h3>
        <span class={`badge ${state}`}>{state}</span>
        {canAbort && (
          <button
            type="button"
            class="small"
            aria-label={abort.title}
            onClick={() => onAction(abort)}
          >
            Abort
          </button>
        )}
      </div>
      <ol class="steps">
        {STATES.map((name) => (
          <Step key={name} name={name} rollout={rollout} current={state} />
        ))}
        {ending !== undefined && ENDED.includes(state) && (
          <li class="step current ended">
            <b>{ending.state}</b>
            <span class="muted">{ending.reason}</span>
          </li>
        )}
      </ol>
      {why !== '' && (state !== 'active' || rollout.isBlocked) && (
        <p class={rollout.isBlocked ? 'error' : 'muted'}>{why}</p>
      )}
      <Watch bundle={bundle} rollout={rollout} state={state} />
      {replicas.length > 0 && (
        <p class="buttons">
          {replicas.map(({ address, holds, isActive, trouble }) => (
            <span
              key={address}
              class={`badge ${isActive ? 'active' : holds ? 'loaded' : 'stale'}`}
              title={trouble}
            >
              {address} {isActive ? 'active' : holds ? 'loaded' : 'missing'}
            </span>
          ))}
        </p>
      )}
    </section>
  );
}

function Step({
  name,
  rollout,
  current,
}: {
  name: string;
  rollout: Rollout;
  current: string;
}): JSX.Element {
  const { entries } = rollout;
  const at = entries.findLastIndex((entry) => entry.state === name);
  const entry = entries[at];
  const end = entries[at + 1]?.at;
  const isCurrent = current === name;
  const lasted =
    entry === undefined
      ? undefined
      : (end === undefined ? Date.now() : Date.parse(end)) - Date.parse(entry.at);
  const kind = isCurrent ? 'current' : entry === undefined ? '' : 'passed';
  return (
    <li
      class={`step ${kind}`}
      aria-current={isCurrent ? 'step' : undefined}
      title={entry === undefined ? undefined : `${entry.holder}: ${entry.reason}`}
    >
      <b>{name}</b>
      <span class="muted">{lasted === undefined ? '–' : formatDuration(lasted)}</span>
    </li>
  );
}

/** The author and the reason of the newest start. */
function Started({ rollout }: { rollout: Rollout }): JSX.Element | null {
  const start = rollout.entries.filter(({ state }) => state === 'seen').at(-1);
  if (start === undefined) return null;
  return (
    <small class="muted">
      {start.reason} · {start.holder}, {formatTime(start.at)}
    </small>
  );
}

/** The measurements of live traffic beside the limits that roll the version back. */
function Watch({
  bundle,
  rollout,
  state,
}: {
  bundle: Bundle;
  rollout: Rollout;
  state: string;
}): JSX.Element | null {
  const { policy } = bundle;
  const { entries, readings } = rollout;
  if (policy === undefined || !WATCHED_STATES.includes(state)) return null;
  const since = Date.parse(entries.filter((entry) => entry.state === 'active').at(-1)?.at ?? '');
  const watchedMs = Math.max(0, Math.min(policy.watchMs, Date.now() - since || 0));
  const isOver = watchedMs >= policy.watchMs;
  return (
    <div class="watch">
      {state === 'active' && (
        <p class="progress">
          <progress max={Math.max(1, policy.watchMs)} value={watchedMs} aria-label="Watch window" />
          <span>
            {isOver
              ? `watched for ${formatDuration(policy.watchMs)}`
              : `watched for ${formatDuration(watchedMs)} of ${formatDuration(policy.watchMs)}`}
          </span>
        </p>
      )}
      {readings === null ? (
        <p class="muted">No request has been measured with this version yet.</p>
      ) : (
        <ul class="limits" data-readings={rollout.version}>
          {LIMITS.map((limit) => (
            <Reading key={limit.name} limit={limit} readings={readings} limits={policy.limits} />
          ))}
        </ul>
      )}
    </div>
  );
}

const WATCHED_STATES = ['activating', 'active'];

interface LimitSpec {
  readonly name: string;
  readonly title: string;
  readonly format: (value: number) => string;
  readonly read: (readings: Readings) => number | undefined;
}

const formatShare = (value: number): string => `${Number((100 * value).toPrecision(3))} %`;

/** All but the first are upper limits. */
const LIMITS: readonly LimitSpec[] = [
  {
    name: 'requestsMin',
    title: 'Requests',
    format: formatExact,
    read: ({ requests }) => requests,
  },
  {
    name: 'errorRateMax',
    title: 'Failed requests',
    format: formatShare,
    read: ({ errorRate }) => errorRate,
  },
  {
    name: 'unavailableMax',
    title: 'Unavailable lookups',
    format: formatShare,
    read: ({ unavailable }) => unavailable,
  },
  {
    name: 'unseenRiseMax',
    title: 'Rise of unseen lookups',
    format: formatShare,
    read: ({ unseenRise }) => unseenRise,
  },
  {
    name: 'scoreDriftMax',
    title: 'Drift of the mean score',
    format: formatShare,
    read: ({ scoreDrift }) => scoreDrift,
  },
  { name: 'p99MsMax', title: 'Latency p99', format: formatMs, read: ({ p99Ms }) => p99Ms },
];

function Reading({
  limit: { name, title, format, read },
  readings,
  limits,
}: {
  limit: LimitSpec;
  readings: Readings;
  limits: Readonly<Record<string, number>>;
}): JSX.Element {
  const value = read(readings);
  const max = limits[name] ?? Number.POSITIVE_INFINITY;
  const isMinimum = name === 'requestsMin';
  const isJudged = readings.requests >= (limits['requestsMin'] ?? 0);
  const isBad = !isMinimum && isJudged && value !== undefined && value > max;
  return (
    <li class={isBad ? 'bad' : ''}>
      <span>{title}</span>
      <b>{value === undefined ? '–' : format(value)}</b>
      <span class="muted">{isMinimum ? `judged from ${format(max)}` : `limit ${format(max)}`}</span>
    </li>
  );
}

function Policy({ bundle }: { bundle: Bundle }): JSX.Element | null {
  const { policy } = bundle;
  if (policy === undefined) return null;
  const channels = policy.channels.map(({ channel, holdMs }) =>
    holdMs > 0 ? `${channel} (watched for ${formatDuration(holdMs)})` : channel,
  );
  return (
    <section class="card">
      <h3>Policy of {bundle.bundle}</h3>
      <p class="muted">
        {policy.gate ? 'The gate must pass. ' : 'Without a gate. '}
        The version moves to {channels.join(', then to ')}, and is then watched for{' '}
        {formatDuration(policy.watchMs)}. It is rolled back when a limit is exceeded.
      </p>
      <ul class="limits" hidden={bundle.rollouts.some(({ readings }) => readings !== null)}>
        {LIMITS.map(({ name, title, format }) => (
          <li key={name}>
            <span>{title}</span>
            <b>
              {name === 'requestsMin' ? 'judged from' : 'at most'}{' '}
              {format(policy.limits[name] ?? Number.NaN)}
            </b>
          </li>
        ))}
      </ul>
    </section>
  );
}
