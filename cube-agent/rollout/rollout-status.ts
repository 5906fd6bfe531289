/** A rollout for people and programs: one line, a table of shards and replicas, or JSON. */
import { printable, table } from '../../lib/platform/text-table.ts';
import type { Step } from './next-step.ts';
import type { Progress } from './rollout-driver.ts';
import type { ReplicaView } from './rollout-view.ts';

export interface RolloutStatus {
  readonly version: string;
  readonly state: string;
  /** What is done or waited for next. */
  readonly step: Step['kind'];
  readonly why: string;
  readonly candidate: string | undefined;
  readonly channels: readonly { readonly channel: string; readonly version: string | undefined }[];
  /** While servers matter: shard by shard. */
  readonly shards: readonly (readonly ReplicaView[])[];
}

export function rolloutStatus(version: string, { state, fleet, step }: Progress): RolloutStatus {
  return {
    version,
    state: state ?? 'not begun',
    step: step.kind,
    why: whyOf(step),
    candidate: fleet.candidate,
    channels: fleet.channels.map(({ channel, pointer }) => ({ channel, version: pointer })),
    shards: fleet.shards,
  };
}

/** In words. */
export function whyOf(step: Step): string {
  switch (step.kind) {
    case 'wait':
    case 'done':
      return step.why;
    case 'enter':
      return `${step.state}: ${step.reason}`;
    case 'stage':
      return 'have the fleet fetch and load it';
    case 'release':
      return `stage nothing but ${step.to} any more`;
    case 'verify':
      return 'read at their source the layers that hosts find damaged';
    case 'gate':
      return step.again === undefined
        ? 'run the gate'
        : `run the gate again, it could not run: ${step.again}`;
    case 'move':
      return `point ${step.channel} to it`;
    case 'back':
      return `point ${step.channel} back${step.condemn ? ', and quarantine it' : ''}`;
    case 'quarantine':
      return 'quarantine it';
  }
}

/** One line. */
export function statusLine({ version, state, why }: RolloutStatus): string {
  return printable(`version ${version} is ${state}: ${why}`);
}

/** With a table of shards × replicas while they matter. */
export function statusTable(status: RolloutStatus): string {
  const { channels, shards } = status;
  const pointers = channels.map(({ channel, version }) => `${channel} ${version ?? '-'}`);
  const lines = [statusLine(status), `channels: ${pointers.join(', ')}`];
  if (shards.length > 0) {
    const rows = shards.flatMap((replicas, shard) =>
      replicas.map(({ address, holds, isActive, trouble }) => [
        `${shard}/${shards.length}`,
        address,
        isActive ? 'active' : holds ? 'held' : 'missing',
        trouble,
      ]),
    );
    lines.push('', table(['SHARD', 'REPLICA', 'VERSION', 'TROUBLE'], rows));
  }
  return lines.join('\n');
}
