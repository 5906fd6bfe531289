/** The clients in other languages, and how to run their conformance programs. */
import { execFile } from 'node:child_process';
import { accessSync, constants } from 'node:fs';
import { delimiter, join } from 'node:path';
import { promisify } from 'node:util';

const run = promisify(execFile);
const ROOT = join(import.meta.dirname, '../../..');
const VECTORS = join(ROOT, 'docs/hash-vectors.json');
export const CLIENTS: string = join(ROOT, 'clients');

export interface Language {
  readonly name: string;
  /** Programs that must be on the PATH. */
  readonly needs: readonly string[];
  /** Builds the runner in a folder. @returns its command line, without the cases' parameters */
  readonly build: (folder: string) => Promise<readonly string[]>;
  /** Whether it compresses requests. */
  readonly compresses: boolean;
}

export const LANGUAGES: readonly Language[] = [
  {
    name: 'python',
    needs: ['python3'],
    build: () => Promise.resolve(['python3', '-B', join(CLIENTS, 'python/conformance.py')]),
    compresses: true,
  },
  {
    name: 'go',
    needs: ['go'],
    build: async (folder) => {
      const program = join(folder, 'conformance');
      const env = { ...process.env, GOFLAGS: '-mod=mod', GOTOOLCHAIN: 'local' };
      await run('go', ['build', '-o', program, './conformance'], {
        cwd: join(CLIENTS, 'go'),
        env,
      });
      return [program];
    },
    compresses: true,
  },
  {
    name: 'java',
    needs: ['java', 'javac'],
    build: async (folder) => {
      const files = ['Client', 'Conformance', 'Features', 'Hashing', 'HypercubeException', 'Json'];
      const sources = [...files, 'Prediction'].map((file) => `src/hypercube/${file}.java`);
      const options = ['--release', '11', '-Xlint:all', '-Werror', '-d', folder];
      await run('javac', [...options, ...sources], { cwd: join(CLIENTS, 'java') });
      return ['java', '-XX:TieredStopAtLevel=1', '-cp', folder, 'hypercube.Conformance'];
    },
    compresses: true,
  },
  {
    name: 'php',
    needs: ['php'],
    build: () => Promise.resolve(['php', join(CLIENTS, 'php/conformance.php')]),
    compresses: true,
  },
  {
    name: 'cpp',
    needs: ['g++', 'curl-config'],
    build: async (folder) => {
      const program = join(folder, 'conformance');
      const options = ['-std=c++17', '-Wall', '-Wextra', '-Werror', '-o', program];
      await run('g++', [...options, join(CLIENTS, 'cpp/conformance.cpp'), '-lcurl']);
      return [program];
    },
    compresses: false,
  },
];

/** @returns why a language cannot be tested here; false if it can */
export function findSkipReason({ needs }: Language): string | false {
  const missing = needs.filter((program) => !isOnPath(program));
  return missing.length > 0 && `not on the PATH: ${missing.join(', ')}`;
}

/**
 * Builds the conformance program of a language and runs it.
 * @param folder for the built program
 * @param cases path of the file of cases
 * @param url base address of the server that the cases call
 * @returns an answer for each case
 */
export async function runCases<T>(
  language: Language,
  folder: string,
  cases: string,
  url: string,
): Promise<T[]> {
  const [program = '', ...parameters] = await language.build(folder);
  const given = [...parameters, cases, url, VECTORS];
  const { stdout } = await run(program, given, { maxBuffer: 1 << 26 });
  return stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
}

function isOnPath(program: string): boolean {
  return (process.env['PATH'] ?? '').split(delimiter).some((folder) => {
    try {
      accessSync(join(folder, program), constants.X_OK);
      return true;
    } catch {
      return false;
    }
  });
}
