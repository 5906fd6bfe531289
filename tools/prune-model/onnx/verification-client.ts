/**
 * Runs the verification of an ONNX model in a child process, so that a native crash or an endless
 * run ends the verification and not the tool.
 */
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { CubeError, type ErrorCode } from '../../../lib/core/errors.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import type { VerificationRequest, VerificationResult } from '../cut/verification.ts';

/** A verification takes seconds; for a model of gigabytes, a minute. */
const VERIFICATION_TIMEOUT_MS = 600_000;
const RESPONSE_BYTES_MAX = 16 << 20;

export interface VerificationProcessRequest {
  readonly model: string;
  readonly fetch: readonly string[];
  readonly folder: string;
  readonly samples: number;
}

/** One line of JSON. */
export type VerificationProcessResponse =
  | {
      readonly ok: true;
      readonly verification: VerificationResult['verification'];
      readonly outputShapes: readonly (readonly [string, readonly number[]])[];
    }
  | { readonly ok: false; readonly code: ErrorCode; readonly message: string };

export async function verifyInChildProcess(
  { model, fetch }: Pick<VerificationProcessRequest, 'model' | 'fetch'>,
  { folder, samples }: VerificationRequest,
): Promise<VerificationResult> {
  const response = await runVerificationProcess({ model, fetch, folder, samples });
  if (!response.ok) throw new CubeError(response.code, response.message);
  return { verification: response.verification, outputShapes: new Map(response.outputShapes) };
}

async function runVerificationProcess(
  request: VerificationProcessRequest,
): Promise<VerificationProcessResponse> {
  const script = fileURLToPath(new URL('./verification-process.js', import.meta.url));
  const child = spawn(process.execPath, [script], { stdio: ['pipe', 'pipe', 'ignore'] });
  const pieces: Buffer[] = [];
  let bytes = 0;
  let killReason = '';
  const kill = (reason: string): void => {
    killReason = reason;
    child.kill('SIGKILL');
  };
  const timer = setTimeout(
    () => kill(`took longer than ${VERIFICATION_TIMEOUT_MS / 1000} s`),
    VERIFICATION_TIMEOUT_MS,
  );
  child.stdout.on('data', (piece: Buffer) => {
    bytes += piece.length;
    if (bytes > RESPONSE_BYTES_MAX) kill(`wrote more than ${RESPONSE_BYTES_MAX} bytes`);
    else pieces.push(piece);
  });
  child.stdin.on('error', () => undefined);
  child.stdin.end(JSON.stringify(request));
  const ended = await new Promise<string>((resolve) => {
    child.once('error', (error) => resolve(error.message));
    child.once('close', (code, signal) =>
      resolve(code === 0 ? '' : `ended with ${signal ?? code}`),
    );
  });
  clearTimeout(timer);
  if (ended === '' && killReason === '') return JSON.parse(Buffer.concat(pieces).toString('utf8'));
  throw notVerifiedError(`the process that runs both models ${killReason || ended}`);
}
