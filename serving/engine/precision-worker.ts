/** The thread of precision-check.ts: converts and checks one graph, replies, and ends. */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { type CheckedGraph, convertAndCheck, type PrecisionRequest } from './precision-check.ts';

export type PrecisionReply =
  | ({ readonly ok: true } & CheckedGraph)
  | { readonly ok: false; readonly code: ErrorCode; readonly message: string };

if (parentPort === null) throw new Error('precision-worker runs as a worker thread');
const port = parentPort;

async function makeReply(): Promise<PrecisionReply> {
  try {
    return { ok: true, ...(await convertAndCheck(workerData as PrecisionRequest)) };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    return { ok: false, code, message };
  }
}

void makeReply().then((reply) => port.postMessage(reply));
