/**
 * Runs prune-model on models of a test, in a folder of its own that goes away
 * afterwards.
 */
import assert from 'node:assert/strict';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import { JsonReader } from '../../../../lib/core/json.ts';
import { decodeNpy } from '../../../../lib/core/npy.ts';
import { readSlotSpec, type SlotSpec } from '../../../../lib/core/slots.ts';
import { OnnxModel } from '../../../../lib/platform/onnx.ts';
import type { Report } from '../../../../tools/prune-model/report.ts';
import { runCommand } from '../../../support/commands.ts';

export interface CommandResult {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

export interface PrunedModel {
  readonly report: Report;
  readonly spec: SlotSpec;
  readonly model: Uint8Array;
  /** Names of the pruned model's inputs and outputs, as onnxruntime sees them. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  table(name: string): { readonly shape: readonly number[]; readonly values: readonly number[] };
}

export class PruneHarness {
  readonly folder: string;
  readonly output: string;

  constructor() {
    this.folder = mkdtempSync(join(tmpdir(), 'hypercube-prune-'));
    this.output = join(this.folder, 'out');
    after(() => rmSync(this.folder, { recursive: true, force: true }));
  }

  path(name: string): string {
    return join(this.folder, name);
  }

  write(name: string, data: Uint8Array | string | object): string {
    const isRaw = typeof data === 'string' || data instanceof Uint8Array;
    writeFileSync(this.path(name), isRaw ? data : JSON.stringify(data));
    return this.path(name);
  }

  /** A file of the output. */
  readOutput(name: string): Uint8Array {
    return new Uint8Array(readFileSync(join(this.output, name)));
  }

  async run(...args: string[]): Promise<CommandResult> {
    const { code, stdout, stderr } = await runCommand('tools/prune-model/main.js', ...args);
    return { status: code, stdout, stderr };
  }

  /** Prunes a model to the output folder, replacing an earlier one; it must succeed. */
  async prune(model: Uint8Array, ...args: string[]): Promise<PrunedModel> {
    rmSync(this.output, { recursive: true, force: true });
    const path = this.write('model.onnx', model);
    const outcome = await this.run('--model', path, '--output', this.output, '--json', ...args);
    assert.equal(outcome.status, 0, outcome.stderr);
    assert.equal(outcome.stderr, '');
    assert.equal(outcome.stdout, readFileSync(join(this.output, 'report.json'), 'utf8'));
    return this.read(JSON.parse(outcome.stdout));
  }

  async read(report: Report): Promise<PrunedModel> {
    const slots = readFileSync(join(this.output, 'slots.json'), 'utf8');
    const model = new Uint8Array(readFileSync(join(this.output, 'model.onnx')));
    const loaded = await OnnxModel.load(model);
    const [inputs, outputs] = [loaded.inputs, loaded.outputs].map((p) => p.map(({ name }) => name));
    assert.ok(inputs && outputs);
    await loaded.release();
    return {
      report,
      model,
      spec: readSlotSpec(JsonReader.parse(slots, 'slots.json')),
      inputs: inputs,
      outputs: outputs,
      table: (name) => {
        const file = readFileSync(join(this.output, 'tables', `${name}.npy`));
        const { shape, data } = decodeNpy(file, name);
        return { shape, values: Array.from(data, Number) };
      },
    };
  }

  /**
   * Runs on a model that must not be pruned: nothing may change on the disk, one line must say why.
   */
  async expectRefusal(model: Uint8Array, status: number, ...args: string[]): Promise<string> {
    const path = this.write('model.onnx', model);
    const before = this.snapshot();
    const outcome = await this.run('--model', path, '--output', this.output, '--force', ...args);
    assert.equal(outcome.status, status, outcome.stderr);
    assert.equal(outcome.stdout, '');
    assert.match(outcome.stderr, /^prune-model: [^\n]+\n$/);
    assert.deepEqual(this.snapshot(), before);
    return outcome.stderr;
  }

  /** Every file of the harness's folder, hidden ones too, with its bytes. */
  snapshot(): Map<string, string> {
    const entries = readdirSync(this.folder, { recursive: true, withFileTypes: true });
    return new Map(
      entries
        .map((entry) => ({ entry, path: join(entry.parentPath, entry.name) }))
        .map(({ entry, path }): [string, string] => [
          path,
          entry.isFile() ? readFileSync(path, 'latin1') : 'folder',
        ])
        .sort(([a], [b]) => (a < b ? -1 : 1)),
    );
  }
}
