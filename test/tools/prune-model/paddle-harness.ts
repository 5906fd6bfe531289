/** Runs the built prune-model command on Paddle models of a test. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { JsonReader } from '../../../lib/core/json.ts';
import { decodeNpy } from '../../../lib/core/npy.ts';
import { readSlotSpec, type SlotSpec } from '../../../lib/core/slots.ts';
import type { Program } from '../../../tools/prune-model/paddle/program.ts';
import { columnsOf } from '../../../tools/prune-model/paddle/program-graph.ts';
import { readProgram } from '../../../tools/prune-model/paddle/program-reader.ts';
import type { Report } from '../../../tools/prune-model/report.ts';
import { type ModelFiles, writeModel } from './paddle-builder.ts';
import { Harness } from './prune-harness.ts';

export interface PrunedProgram {
  readonly report: Report;
  readonly spec: SlotSpec;
  readonly program: Program;
  readonly bytes: Uint8Array;
  /** Names of feeds and fetches, by column. */
  readonly feeds: readonly string[];
  readonly fetches: readonly string[];
  readonly ops: readonly string[];
}

export class PaddleHarness extends Harness {
  #models = 0;

  writeModel(files: ModelFiles, layout?: 'separate' | 'combined' | 'pdmodel'): string {
    this.#models++;
    return writeModel(this.path(`model${this.#models}`), files, layout);
  }

  /** Prunes to the output folder, replacing an earlier one; it must succeed and be proved. */
  pruneTo(model: string, ...args: string[]): Report {
    rmSync(this.output, { recursive: true, force: true });
    const outcome = this.run('--model', model, '--output', this.output, '--json', ...args);
    assert.equal(outcome.status, 0, outcome.stderr);
    return JSON.parse(outcome.stdout);
  }

  pruneProgram(model: string, ...args: string[]): PrunedProgram {
    const report = this.pruneTo(model, ...args);
    const name = existsSync(join(this.output, '__model__')) ? '__model__' : 'ctr.pdmodel';
    const bytes = new Uint8Array(this.file(name));
    const program = readProgram(bytes, name);
    const names = (type: 'feed' | 'fetch'): string[] => {
      const columns = columnsOf(program, type);
      assert.deepEqual(
        columns.map(({ column }) => column),
        columns.map((_, i) => i),
      );
      return columns.map((column) => column.name);
    };
    const spec = readSlotSpec(JsonReader.parse(String(this.file('slots.json')), 'slots.json'));
    const ops = program.blocks[0]!.ops.map(({ type }) => type);
    return {
      ...{ report, spec, program, bytes, ops },
      ...{ feeds: names('feed'), fetches: names('fetch') },
    };
  }

  file(name: string): Buffer {
    return readFileSync(join(this.output, name));
  }

  npy(name: string): { readonly shape: readonly number[]; readonly values: readonly number[] } {
    const { shape, data } = decodeNpy(this.file(join('tables', name)), name);
    return { shape, values: Array.from(data, Number) };
  }

  /** It must be refused in one line, and nothing may change on the disk. */
  refuseModel(model: string, status: number, ...args: string[]): string {
    const before = this.snapshot();
    const outcome = this.run('--model', model, '--output', this.output, '--force', ...args);
    assert.equal(outcome.status, status, outcome.stderr + outcome.stdout);
    assert.match(outcome.stderr, /^prune-model: [^\n]+\n$/);
    assert.deepEqual(this.snapshot(), before);
    return outcome.stderr;
  }
}
