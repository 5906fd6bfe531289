#!/usr/bin/env node
/** example-models: makes and trains the models of the folder `examples`. */
import { run } from './cli.ts';

process.exitCode = await run(process.argv.slice(2));
