/**
 * Temporary folders and made-up versions. A repository never looks inside a layer, so any bytes do
 * here.
 */
import type { ChildProcess } from 'node:child_process';
import { createCipheriv, createHash } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import type { TestContext } from 'node:test';
import type { LayerRef, Manifest, TableRef } from '../../../lib/core/manifest.ts';
import type { Publication, Repository } from '../../../lib/repository/repository.ts';

const endings = new WeakMap<TestContext, (() => unknown)[]>();

/**
 * Runs at the end of the test, last come first: a process ends before the folder it writes to is
 * removed. One that fails stops no other.
 */
export function onTestEnd(t: TestContext, action: () => unknown): void {
  const known = endings.get(t);
  if (known !== undefined) {
    known.push(action);
    return;
  }
  const actions = [action];
  endings.set(t, actions);
  t.after(async () => {
    const failures: unknown[] = [];
    for (const end of actions.reverse()) {
      try {
        await end();
      } catch (error) {
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  });
}

/** Ends a process with the test, whatever has become of both. */
export function killOnTestEnd(t: TestContext, child: ChildProcess): void {
  onTestEnd(t, async () => {
    if (child.exitCode !== null || child.signalCode !== null) return;
    const exited = once(child, 'exit');
    child.kill('SIGKILL');
    await exited;
  });
}

export function temporaryFolder(t: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-test-'));
  onTestEnd(t, () => rmSync(folder, { recursive: true, force: true, maxRetries: 10 }));
  return folder;
}

export function sha256(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}

/** Bytes that are the same for the same text, and different for another: a key stream. */
export function makeBytes(text: string, length: number): Uint8Array {
  const key = createHash('sha256').update(text).digest().subarray(0, 16);
  const cipher = createCipheriv('aes-128-ctr', key, Buffer.alloc(16));
  return new Uint8Array(cipher.update(new Uint8Array(length)));
}

export interface VersionSpec {
  bundle?: string;
  version: string;
  shardNum?: number;
  layerBytes?: number;
  /** Equal texts give equal layers: a version with the table of another shares them. */
  table?: string;
  graph?: string;
}

/** A version with one table, "t", of `shardNum` layers written under `folder`. */
export function makeVersion(folder: string, options: VersionSpec): Publication {
  const { bundle = 'ctr', version, shardNum = 2, layerBytes = 1000, table = 'a' } = options;
  const layers = Array.from({ length: shardNum }, (_, shard) => {
    const bytes = makeBytes(`${table}/${shard}of${shardNum}`, layerBytes);
    const contentId = sha256(bytes).slice(0, 32);
    const path = join(folder, `${contentId}.cube`);
    mkdirSync(dirname(path), { recursive: true });
    writeFileSync(path, bytes);
    return {
      contentId,
      kind: 'base' as const,
      bytes: layerBytes,
      sha256: sha256(bytes),
      rows: 1,
      path,
    };
  });
  const graph = new TextEncoder().encode(options.graph ?? `graph of ${version}`);
  const slots = new TextEncoder().encode('{"format":1,"tables":[],"embeddings":[]}');
  const files = new Map([
    ['model.onnx', graph],
    ['slots.json', slots],
  ]);
  const manifest: Manifest = {
    bundle,
    version,
    files: [...files].map(([path, bytes]) => ({
      path,
      bytes: bytes.length,
      sha256: sha256(bytes),
    })),
    hash: { scheme: 'xxh64-concat', seed: 0n, modulo: 1000n },
    slots: [{ name: 'C1', index: 14 }],
    tables: [makeTable(layers)],
  };
  const sources = layers.map(({ contentId, path }) => ({ table: 't', contentId, path }));
  return { manifest, files, layers: sources };
}

function makeTable(layers: readonly LayerRef[]): TableRef {
  return {
    name: 't',
    dim: 4,
    dtype: 'f32',
    rows: layers.length,
    defaultRow: [],
    shardNum: layers.length,
    shards: layers.map(({ contentId, kind, bytes, sha256, rows }) => [
      { contentId, kind, bytes, sha256, rows },
    ]),
  };
}

/**
 * Every file and layer of every version of "ctr" that is there can be read. @returns the versions
 */
export async function requireCompleteVersions(
  t: TestContext,
  repository: Repository,
): Promise<string[]> {
  const versions = await repository.listVersions('ctr');
  for (const version of versions) {
    const manifest = await repository.readManifest('ctr', version);
    for (const { path } of manifest.files) await repository.readVersionFile('ctr', version, path);
    for (const layer of manifest.tables.flatMap((table) => table.shards.flat())) {
      const target = join(temporaryFolder(t), layer.contentId);
      await repository.fetchLayer('ctr', 't', layer, target);
    }
  }
  return versions;
}

/** The first layer of a shard of table "t". */
export function getBaseLayer(manifest: Manifest, shard: number): LayerRef {
  const layer = manifest.tables[0]?.shards[shard]?.[0];
  if (layer === undefined) throw new Error(`no shard ${shard}`);
  return layer;
}
