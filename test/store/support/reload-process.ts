/**
 * Loads and unloads versions in turn, two resident at a time, and prints its RSS after a warm-up
 * and at the end as JSON. Arguments: folder, then the manifests as JSON (without 64-bit numbers).
 */
import { readFileSync } from 'node:fs';
import type { Manifest } from '../../../lib/core/manifest.ts';
import { ResidentStore } from '../../../lib/store/resident-store.ts';
import { createLayerPath } from './layers.ts';

const WARM_UP = 10;
const CYCLES = 100;
const [folder, file] = process.argv.slice(2);
const manifests = JSON.parse(readFileSync(file!, 'utf8')) as Manifest[];
const store = new ResidentStore({ budgetBytes: 128 << 20 });
let rssAfterWarmUp = 0;
for (let cycle = 0; cycle < WARM_UP + CYCLES; cycle++) {
  const manifest = manifests[cycle % manifests.length]!;
  await store.load({ manifest, shardIndex: 0, layerPath: createLayerPath(folder!) });
  const previous = manifests[(cycle + manifests.length - 1) % manifests.length]!;
  store.unload(previous.bundle, previous.version);
  if (cycle === WARM_UP - 1) rssAfterWarmUp = process.memoryUsage().rss;
}
const report = { rssAfterWarmUp, rss: process.memoryUsage().rss, memory: store.getMemoryUsage() };
process.stdout.write(JSON.stringify(report));
