/** Each rollout as its states in order, with the time in each, and what it waits for. */
import type { JSX } from 'preact';
import { useState } from 'preact/hooks';
import type { Connection } from '../connection.ts';
import { type Action, ActionDialog } from '../dialog.tsx';
import { formatDuration } from '../format.ts';
import type { Bundle, Rollout } from '../types.ts';

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
        <ActionDialog action={action} onClose={() => setAction(undefined)} />
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
        </h3>
        <span class={`badge ${state}`}>{state}</span>
        {canAbort && (
          <button type="button" class="small" onClick={() => onAction(abort)}>
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
      {why !== '' && <p class={rollout.isBlocked ? 'error' : 'muted'}>{why}</p>}
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

const LIMITS: Readonly<Record<string, string>> = {
  requestsMin: 'requests needed to judge',
  errorRateMax: 'share of failed requests, at most',
  unavailableMax: 'share of unavailable lookups, at most',
  unseenRiseMax: 'rise of the share of unseen lookups, at most',
  scoreDriftMax: 'drift of the mean score, at most',
  p99MsMax: 'latency p99 in ms, at most',
};

function Policy({ bundle }: { bundle: Bundle }): JSX.Element | null {
  const { policy } = bundle;
  if (policy === undefined) return null;
  return (
    <section class="card">
      <h3>Policy of {bundle.bundle}</h3>
      <p class="muted">
        {policy.gate ? 'The gate must pass' : 'No gate'}; channels{' '}
        {policy.channels
          .map(({ channel, holdMs }) =>
            holdMs > 0 ? `${channel} (watched ${formatDuration(holdMs)})` : channel,
          )
          .join(', then ')}
        ; then watched for {formatDuration(policy.watchMs)} with these limits:
      </p>
      <ul class="limits">
        {Object.entries(policy.limits).map(([name, value]) => (
          <li key={name}>
            <b>{value}</b> {LIMITS[name] ?? name}
          </li>
        ))}
      </ul>
    </section>
  );
}
