/**
 * What all lookups of a version have in common, worked out once: its tables as they will be answered, and the parts of a request's
 * head that do not change. A request's head is then a few copies: no message is built from objects.
 */
import {
  encodeLookupRequest,
  LOOKUP_METHOD,
  LOOKUP_SERVICE,
  ROWS_F32,
} from '../../proto/lookup.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import type { CubeError } from '../core/errors.ts';
import { type Manifest, shardNumOf, tableOf } from '../core/manifest.ts';
import { rowBytesOf } from '../core/row-codec.ts';
import { tablesDigest } from '../core/tables-digest.ts';
import { defaultRowOf } from './lookup-group.ts';
import type { PlannedTable } from './planned-table.ts';
import type { ShardSubject } from './replica-probe.ts';
import type { RequestPart } from './scatter.ts';
import { checkAnswer } from './shard-answer.ts';

/** ROWS_F32 or ROWS_STORED of proto/lookup.ts. */
export type RowsAs = 0 | 1;

const TAG_GROUP = 0x2a;
const TAG_TABLE = 0x0a;
const TAG_COUNT = 0x10;
const textEncoder = new TextEncoder();

export class LookupPlan implements ShardSubject {
  readonly service: string = LOOKUP_SERVICE;
  readonly method: string = LOOKUP_METHOD;
  readonly manifest: Manifest;
  readonly rowsAs: RowsAs;
  readonly versionKey: string;
  readonly shardNum: number;
  readonly #tables = new Map<string, PlannedTable>();
  /** By shard: a request's head without its groups. */
  readonly #heads: Uint8Array[] = [];

  constructor(manifest: Manifest, rowsAs: RowsAs) {
    this.manifest = manifest;
    this.rowsAs = rowsAs;
    this.versionKey = `${manifest.bundle}/${manifest.version}`;
    this.shardNum = shardNumOf(manifest);
  }

  /** @throws CubeError NOT_FOUND naming the tables there are */
  table(name: string): PlannedTable {
    let table = this.#tables.get(name);
    if (table === undefined) {
      table = this.#plan(name);
      this.#tables.set(name, table);
    }
    return table;
  }

  /** A request's head without groups: an empty lookup, which asks only whether the version is held. */
  emptyPayload(shard: number): Uint8Array {
    let head = this.#heads[shard];
    if (head === undefined) {
      const { bundle, version } = this.manifest;
      head = encodeLookupRequest({
        ...{ bundle, version, shardIndex: shard, shardNum: this.shardNum, groups: [] },
        ...{ tablesDigest: tablesDigest(this.manifest), rowsAs: this.rowsAs },
      }).slice();
      this.#heads[shard] = head;
    }
    return head;
  }

  /** A request's head, valid until the next one is made. @param tables by group */
  head(shard: number, parts: readonly RequestPart[], tables: readonly PlannedTable[]): Uint8Array {
    scratch.truncate(0);
    scratch.append(this.emptyPayload(shard));
    for (const { group, count } of parts) {
      const { groupHead } = tables[group]!;
      scratch.appendByte(TAG_GROUP);
      scratch.appendVarint(groupHead.length + varintBytes(count));
      scratch.appendRange(groupHead, 0, groupHead.length);
      scratch.appendVarint(count);
    }
    return scratch.written();
  }

  checkEmpty(payload: Uint8Array, attachment: Uint8Array): void {
    const { version } = this.manifest;
    checkAnswer({ version, parts: [], tables: [] }, payload, attachment);
  }

  /** From the text of VERSION_ABSENT: "… (held: 1, 2)". */
  heldVersions(error: CubeError): readonly string[] {
    const held = /\(held: ([^()]+)\)$/.exec(error.message)?.[1];
    if (held === undefined || held === 'none') return [];
    return held.split(', ').map((version) => `${this.manifest.bundle}/${version}`);
  }

  #plan(name: string): PlannedTable {
    const ref = tableOf(this.manifest, name);
    const { dim } = ref;
    const asF32 = this.rowsAs === ROWS_F32 && ref.dtype !== 'bytes';
    const dtype = asF32 ? 'f32' : ref.dtype;
    const rowBytes = rowBytesOf(dtype, dim);
    const bytes = textEncoder.encode(name);
    const groupHead = new OutputBuffer(bytes.length + 16);
    groupHead.appendString(TAG_TABLE, name);
    groupHead.appendByte(TAG_COUNT);
    return {
      ...{ name, dim, dtype, rowBytes },
      fillRow: asF32 ? defaultRowOf(ref) : new Uint32Array(rowBytes / 4),
      groupHead: groupHead.written().slice(),
    };
  }
}

const scratch = new OutputBuffer(4096);
const plans: readonly WeakMap<Manifest, LookupPlan>[] = [new WeakMap(), new WeakMap()];

export function planOf(manifest: Manifest, rowsAs: RowsAs): LookupPlan {
  let plan = plans[rowsAs]!.get(manifest);
  if (plan === undefined) {
    plan = new LookupPlan(manifest, rowsAs);
    plans[rowsAs]!.set(manifest, plan);
  }
  return plan;
}

function varintBytes(value: number): number {
  let count = 1;
  for (let rest = value; rest > 0x7f; rest = Math.floor(rest / 0x80)) count++;
  return count;
}
