/** The status of a rollout: as JSON, as one line, or with a table of shards and replicas. */
import { formatTable, replaceControlCharacters } from '../../lib/platform/terminal-output.ts';
import type { Step } from './next-step.ts';
import type { RolloutProgress } from './rollout-driver.ts';
import type { ReplicaView } from './rollout-view.ts';

export interface RolloutStatus {
  readonly version: string;
  readonly state: string;
  readonly step: Step['kind'];
  /** The step as text. */
  readonly why: string;
  readonly candidate: string | undefined;
  readonly channels: readonly { readonly channel: string; readonly version: string | undefined }[];
  /** Replicas by shard; empty in states that do not depend on them. */
  readonly shards: readonly (readonly ReplicaView[])[];
}

export function toRolloutStatus(
  version: string,
  { state, fleet, step }: RolloutProgress,
): RolloutStatus {
  return {
    version,
    state: state ?? 'not started',
    step: step.kind,
    why: describeStep(step),
    candidate: fleet.candidate,
    channels: fleet.channels.map(({ channel, pointer }) => ({ channel, version: pointer })),
    shards: fleet.shards,
  };
}

export function describeStep(step: Step): string {
  switch (step.kind) {
    case 'wait':
    case 'done':
      return step.reason;
    case 'enter':
      return `${step.state}: ${step.reason}`;
    case 'stage':
      return 'stage the version on all hosts';
    case 'release':
      return `point the candidate channel to ${step.to}`;
    case 'verify':
      return 'read the damaged layers in the repository';
    case 'gate':
      return step.lastError === undefined
        ? 'run the gate'
        : `run the gate again; the last run failed: ${step.lastError}`;
    case 'move':
      return `point channel ${step.channel} to the version`;
    case 'back':
      return step.quarantines
        ? `roll back channel ${step.channel} and quarantine the version`
        : `roll back channel ${step.channel}`;
    case 'quarantine':
      return 'quarantine the version';
  }
}

export function formatStatusLine({ version, state, why }: RolloutStatus): string {
  return replaceControlCharacters(`version ${version} is ${state}: ${why}`);
}

/** The status line, the channels, and a table of replicas if there are any. */
export function formatStatusTable(status: RolloutStatus): string {
  const { channels, shards } = status;
  const pointers = channels.map(({ channel, version }) => `${channel} ${version ?? '-'}`);
  const lines = [formatStatusLine(status), `channels: ${pointers.join(', ')}`];
  if (shards.length > 0) {
    const rows = shards.flatMap((replicas, shard) =>
      replicas.map(({ address, holds, isActive, trouble }) => [
        `${shard}/${shards.length}`,
        address,
        isActive ? 'active' : holds ? 'loaded' : 'missing',
        trouble,
      ]),
    );
    lines.push('', formatTable(['SHARD', 'REPLICA', 'VERSION', 'PROBLEMS'], rows));
  }
  return lines.join('\n');
}
