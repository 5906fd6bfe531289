/** The thread of user-split-check.ts: checks one graph, replies, and ends. */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { checkUserSplit, type UserSplitReply, type UserSplitRequest } from './user-split-check.ts';

if (parentPort === null) throw new Error('user-split-worker runs as a worker thread');
const port = parentPort;

async function makeReply(): Promise<UserSplitReply> {
  try {
    return { ok: true, difference: await checkUserSplit(workerData as UserSplitRequest) };
  } catch (error) {
    return { ok: false, message: CubeError.from(error).message };
  }
}

void makeReply().then((reply) => port.postMessage(reply));
