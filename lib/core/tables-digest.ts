/**
 * What names the rows of a version by their content. Version names are given by people, and two repositories may give one name
 * to two contents: a lookup that says which rows it means is never answered from others of the same name. Pure.
 */
import { xxh64 } from './hash.ts';
import type { Manifest } from './manifest.ts';

const known = new WeakMap<Manifest, string>();

/** 16 hex digits over tables, their shape, default rows and layers. Equal for a graph-only version: its rows are equal. */
export function tablesDigest(manifest: Manifest): string {
  let digest = known.get(manifest);
  if (digest === undefined) {
    const tables = manifest.tables.map(({ name, dim, dtype, defaultRow, shardNum, shards }) => [
      ...[name, dim, dtype, defaultRow, shardNum],
      shards.map((layers) => layers.map(({ contentId }) => contentId)),
    ]);
    const bytes = new TextEncoder().encode(JSON.stringify(tables));
    digest = xxh64(bytes).toString(16).padStart(16, '0');
    known.set(manifest, digest);
  }
  return digest;
}
