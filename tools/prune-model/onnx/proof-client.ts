/** Runs the proof of an ONNX model in a process of its own: what crashes natively, or never ends, costs the proof and not the tool. */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { CubeError, type ErrorCode } from '../../../lib/core/errors.ts';
import type { ProofRequest, ProofResult } from '../proof.ts';

/** A proof takes seconds; of a model of gigabytes, a minute. */
const PROOF_TIMEOUT_MS = 600_000;
const ANSWER_BYTES_MAX = 16 << 20;

/** What the process is told. */
export interface ProofOrder {
  readonly model: string;
  readonly fetch: readonly string[];
  readonly folder: string;
  readonly samples: number;
}

/** What it answers, as one line of JSON. */
export type ProofAnswer =
  | {
      readonly ok: true;
      readonly proof: ProofResult['proof'];
      readonly outputShapes: readonly (readonly [string, readonly number[]])[];
    }
  | { readonly ok: false; readonly code: ErrorCode; readonly message: string };

export async function proveApart(
  { model, fetch }: Pick<ProofOrder, 'model' | 'fetch'>,
  { folder, samples }: ProofRequest,
): Promise<ProofResult> {
  const order: ProofOrder = { model, fetch, folder, samples };
  const answer = await runProcess(JSON.stringify(order));
  if (!answer.ok) throw new CubeError(answer.code, answer.message);
  return { proof: answer.proof, outputShapes: new Map(answer.outputShapes) };
}

async function runProcess(order: string): Promise<ProofAnswer> {
  const script = fileURLToPath(new URL('./proof-process.js', import.meta.url));
  const child = spawn(process.execPath, [script], { stdio: ['pipe', 'pipe', 'ignore'] });
  const pieces: Buffer[] = [];
  let bytes = 0;
  let why = '';
  const kill = (reason: string): void => {
    why = reason;
    child.kill('SIGKILL');
  };
  const timer = setTimeout(
    () => kill(`took longer than ${PROOF_TIMEOUT_MS / 1000} s`),
    PROOF_TIMEOUT_MS,
  );
  child.stdout.on('data', (piece: Buffer) => {
    bytes += piece.length;
    if (bytes > ANSWER_BYTES_MAX) kill('answered too much');
    else pieces.push(piece);
  });
  child.stdin.on('error', () => undefined);
  child.stdin.end(order);
  const ended = await new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('close', (code, signal) =>
      resolve(code === 0 ? '' : `ended with ${signal ?? code}`),
    );
  });
  clearTimeout(timer);
  if (ended === '' && why === '') return JSON.parse(Buffer.concat(pieces).toString('utf8'));
  throw new CubeError(
    'UNSUPPORTED',
    `not proved: the process that runs both models ${why || ended}; --verify 0 accepts the model without proof`,
  );
}
