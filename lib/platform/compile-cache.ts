/**
 * Keeps compiled code between starts, which makes a start faster on Node 22.10 and newer. Older
 * releases, and accounts without a writable home folder, start without it.
 */
import nodeModule from 'node:module';
import { homedir } from 'node:os';
import { join } from 'node:path';

/** Since Node 22; the types are those of Node 20. */
interface CompileCache {
  enableCompileCache?(folder: string): unknown;
  flushCompileCache?(): void;
}

/** After a start's modules are loaded, so that a process that is killed later has kept them. */
const WRITE_AFTER_MS = 10_000;

/**
 * Call it before the modules are imported that it is for. The folder belongs to this account alone:
 * code from a folder that others can write to would run here. NODE_COMPILE_CACHE names another one.
 */
export function keepCompiledCode(): void {
  const { enableCompileCache, flushCompileCache } = nodeModule as CompileCache;
  if (enableCompileCache === undefined || flushCompileCache === undefined) return;
  if (process.env['NODE_COMPILE_CACHE'] === undefined) {
    const caches = findCacheFolder();
    if (caches === undefined) return;
    enableCompileCache(join(caches, 'hypercube'));
  }
  setTimeout(flushCompileCache, WRITE_AFTER_MS).unref();
}

/** Undefined for an account without a home folder. */
function findCacheFolder(): string | undefined {
  try {
    return process.env['XDG_CACHE_HOME'] || join(homedir(), '.cache');
  } catch {
    return undefined;
  }
}
