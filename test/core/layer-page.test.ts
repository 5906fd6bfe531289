/** The page of the layer format against the field table that the codec follows. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { LAYER_HEADER_FIELDS } from '../../lib/core/layer-header.ts';

const ROOT = join(import.meta.dirname, '..', '..', '..');
const PAGE = join(ROOT, 'docs', 'formats', 'layer.md');

function runLayerPage(...args: string[]): { status: number | null; stderr: string } {
  const script = join(ROOT, 'tools', 'dev', 'layer-page.mjs');
  return spawnSync(process.execPath, [script, ...args], { encoding: 'utf8' });
}

test('the header fields follow each other without overlap', () => {
  const widths: Readonly<Record<string, number>> = { u32: 4, u64: 8, '8 bytes': 8, '16 bytes': 16 };
  let end = 0;
  for (const { offset, type, name } of LAYER_HEADER_FIELDS) {
    assert.ok(offset >= end, `${name} at ${offset} overlaps the field before it`);
    end = offset + (widths[type] ?? 1);
  }
});

test('docs/formats/layer.md shows the header fields of the codec', () => {
  const { status, stderr } = runLayerPage('--check', PAGE);
  assert.equal(stderr, '');
  assert.equal(status, 0);
});

test('a page with another offset is stale until it is written again', (context) => {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-layer-page-'));
  context.after(() => rmSync(folder, { recursive: true }));
  const path = join(folder, 'layer.md');
  const page = readFileSync(PAGE, 'utf8');
  writeFileSync(path, page.replace('| 68 | u32 | dim |', '| 69 | u32 | dim |'));
  assert.equal(runLayerPage('--check', path).status, 1);
  assert.equal(runLayerPage(path).status, 0);
  assert.equal(readFileSync(path, 'utf8'), page);
});
