/** Servers of benchmarks in processes of their own, with their CPU time. */
import { join } from 'node:path';
import { spawnPinned } from './cube-server-process.ts';
import { SERVICE_CORE } from './serving-process.ts';

export interface CountedServer {
  readonly url: URL;
  /** User and system time so far. */
  cpuMicros(): Promise<number>;
  stop(): void;
}

/** @param script in this folder; it calls `announcePort` */
export async function startCountedServer(
  script: string,
  kind: string,
  core: number = SERVICE_CORE,
): Promise<CountedServer> {
  const command = [process.execPath, join(import.meta.dirname, script), kind];
  const child = spawnPinned(core, command);
  const ports = await new Promise<{ port: number; cpuPort: number }>((resolve, reject) => {
    child.stderr?.once('data', (line) => resolve(JSON.parse(String(line))));
    child.on('close', () => reject(new Error(`the server ${kind} ended`)));
  });
  return {
    url: new URL(`http://127.0.0.1:${ports.port}`),
    async cpuMicros() {
      const response = await fetch(`http://127.0.0.1:${ports.cpuPort}`);
      return ((await response.json()) as { micros: number }).micros;
    },
    stop: () => child.kill(),
  };
}
