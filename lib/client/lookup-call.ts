/** A lookup of rows or values, pinned to one version. */
import { LOOKUP_GROUPS_MAX } from '../../proto/lookup.ts';
import { type LookupSummary, OUTCOME_UNAVAILABLE } from '../core/lookup-group.ts';
import type { LookupPlan } from './lookup-plan.ts';
import {
  fillRows,
  type KeyGroup,
  type RequestLimits,
  type RowOutput,
  type ShardRequest,
} from './scatter-gather.ts';
import { type PlannedTable, readRows, readValues } from './shard-response.ts';
import { type CallResources, ShardedCall, type ShardedTask } from './sharded-call.ts';
import type { ValueOutput } from './value-output.ts';

/** Maximum bytes of rows in one response: far below the 64 MiB that servers allow. */
const RESPONSE_BYTES_MAX = 8 << 20;

/** The buffers that a lookup fills; index = group. */
export type LookupOutputs =
  | { readonly kind: 'rows'; readonly groups: readonly RowOutput[] }
  | { readonly kind: 'values'; readonly groups: readonly ValueOutput[] };

export interface LookupTask extends ShardedTask {
  readonly plan: LookupPlan;
  /** Index = group. */
  readonly tables: readonly PlannedTable[];
  readonly groups: readonly KeyGroup[];
  readonly outputs: LookupOutputs;
}

export class LookupCall extends ShardedCall<LookupTask> {
  constructor(task: LookupTask, resources: CallResources) {
    super(task.plan, task, resources);
  }

  /** @throws CubeError for a mistake in the groups or in the fleet file */
  async run(): Promise<LookupSummary> {
    const { plan, tables, groups, keysPerRequestMax } = this.task;
    const limits: RequestLimits = {
      keys: keysPerRequestMax,
      groups: LOOKUP_GROUPS_MAX,
      responseBytes: RESPONSE_BYTES_MAX,
    };
    this.keys.assign(groups, plan.shardNum);
    const rowBytes = tables.map((table) => table.rowBytes);
    await this.sendAll(this.keys.createRequests(limits, rowBytes));
    const { unseen, unavailable, reason, deadlineExceeded } = this;
    const { version } = plan.manifest;
    if (reason === '') return { version, unseen, unavailable };
    return { version, unseen, unavailable, reason, deadlineExceeded };
  }

  encodePayload({ shard, parts }: ShardRequest): Uint8Array {
    return this.task.plan.requestPayload(shard, parts, this.task.tables);
  }

  encodeAttachment(request: ShardRequest): Uint8Array {
    return this.keys.keyBytes(request);
  }

  readResponse({ parts }: ShardRequest, payload: Uint8Array, attachment: Uint8Array): void {
    const { plan, tables, outputs } = this.task;
    const { version } = plan.manifest;
    const expected = { version, parts, tables, order: this.keys.order };
    this.unseen +=
      outputs.kind === 'rows'
        ? readRows(expected, outputs.groups, payload, attachment)
        : readValues(expected, outputs.groups, payload, attachment);
  }

  protected fillUnavailable({ parts }: ShardRequest): void {
    const { tables, outputs } = this.task;
    const { order } = this.keys;
    for (const part of parts) {
      const { group, start, count } = part;
      if (outputs.kind === 'values') {
        const { outcomes } = outputs.groups[group]!;
        for (let i = 0; i < count; i++) outcomes[order[start + i]!] = OUTCOME_UNAVAILABLE;
      } else {
        fillRows(part, order, tables[group]!.fillRow, OUTCOME_UNAVAILABLE, outputs.groups[group]!);
      }
    }
  }

  /**
   * Only the servers know how long values are. A request for rows is cut to fit before it is sent.
   */
  protected canSplit(): boolean {
    return this.task.outputs.kind === 'values';
  }

  protected describe(): string {
    const { bundle, version } = this.subject;
    return `${bundle} ${version}`;
  }

  protected get subject(): { bundle: string; version: string } {
    const { bundle, version } = this.task.plan.manifest;
    return { bundle, version };
  }
}
