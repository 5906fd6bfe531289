/**
 * The folder for what tests write: in memory where there is enough of it, because tests write and
 * sync many small files (docs/adr/0043-test-files-share-processes.md). A TMPDIR that is set stays.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, statfsSync, writeFileSync } from 'node:fs';
import { freemem, tmpdir } from 'node:os';
import { join } from 'node:path';

/** Linux's file system in memory. */
const MEMORY_FOLDER = '/dev/shm';
const FREE_BYTES_MIN = 8 * 2 ** 30;
/** Short: paths of sockets have at most 107 bytes. */
const PREFIX = 'hc-test-';

/** @returns the path of a new folder, which is removed when this process exits */
export function makeTestFolder() {
  const isChosen = process.env.TMPDIR !== undefined;
  const folder = (isChosen ? undefined : makeInMemory()) ?? mkdtempSync(join(tmpdir(), PREFIX));
  process.once('exit', () => rmSync(folder, { recursive: true, force: true }));
  for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => process.exit(1));
  return folder;
}

/** Undefined where there is too little memory, or where programs in it may not run. */
function makeInMemory() {
  let folder;
  try {
    const { bavail, bsize } = statfsSync(MEMORY_FOLDER);
    if (Math.min(bavail * bsize, freemem()) < FREE_BYTES_MIN) return undefined;
    folder = mkdtempSync(join(MEMORY_FOLDER, PREFIX));
    const script = join(folder, 'script');
    writeFileSync(script, '#!/bin/sh\n', { mode: 0o755 });
    const { status } = spawnSync(script);
    rmSync(script);
    if (status === 0) return folder;
  } catch {
    // There is none: not Linux, or a container without.
  }
  if (folder !== undefined) rmSync(folder, { recursive: true, force: true });
  return undefined;
}
