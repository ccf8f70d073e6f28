"""The options that the schedulers document, as data: names, and the kind of value each takes.

A line holds an option's names and its kind; ``-`` is an option that takes no value, a ``?`` before the kind one that
may be left out.  The kinds are those of `directives_values`.
"""

from __future__ import annotations

SLURM_SOURCE = "sbatch(1) of Slurm 22.05, OPTIONS; https://slurm.schedmd.com/sbatch.html"
SLURM = """
-A --account NAME
   --acctg-freq TEXT
-a --array ARRAY
   --batch TEXT
   --bb TEXT
   --bbf PATH
-b --begin TEXT
-D --chdir PATH
   --cluster-constraint TEXT
-M --clusters TEXT
   --comment TEXT
-C --constraint TEXT
   --container PATH
   --contiguous -
-S --core-spec COUNT
   --cores-per-socket COUNT
   --cpu-freq TEXT
   --cpus-per-gpu COUNT
-c --cpus-per-task COUNT
   --deadline TEXT
   --delay-boot TEXT
-d --dependency TEXT
-m --distribution TEXT
-e --error PATH
-x --exclude TEXT
   --exclusive ?TEXT
   --export TEXT
   --export-file TEXT
-B --extra-node-info TEXT
   --get-user-env ?TEXT
   --gid TEXT
   --gpu-bind TEXT
   --gpu-freq TEXT
-G --gpus GPUS
   --gpus-per-node GPUS
   --gpus-per-socket GPUS
   --gpus-per-task GPUS
   --gres TEXT
   --gres-flags TEXT
   --hint TEXT
-H --hold -
   --ignore-pbs -
-i --input PATH
-J --job-name TEXT
   --kill-on-invalid-dep YESNO
-L --licenses TEXT
   --mail-type TEXT
   --mail-user TEXT
   --mcs-label TEXT
   --mem SIZE
   --mem-bind TEXT
   --mem-per-cpu SIZE
   --mem-per-gpu SIZE
   --mincpus COUNT
   --network TEXT
   --nice ?NUMBER
-k --no-kill ?TEXT
   --no-requeue -
-F --nodefile PATH
-w --nodelist TEXT
-N --nodes NODES
-n --ntasks COUNT
   --ntasks-per-core COUNT
   --ntasks-per-gpu COUNT
   --ntasks-per-node COUNT
   --ntasks-per-socket COUNT
   --open-mode OPEN
-o --output PATH
-O --overcommit -
-s --oversubscribe -
   --parsable -
-p --partition TEXT
   --power TEXT
   --prefer TEXT
   --priority TEXT
   --profile TEXT
   --propagate ?TEXT
-q --qos NAME
-Q --quiet -
   --reboot -
   --requeue -
   --reservation TEXT
   --signal SIGNAL
   --sockets-per-node COUNT
   --spread-job -
   --switches TEXT
   --test-only -
   --thread-spec COUNT
   --threads-per-core COUNT
-t --time TIME
   --time-min TIME
   --tmp SIZE
   --uid TEXT
   --use-min-nodes -
-v --verbose -
-W --wait -
   --wait-all-nodes NUMBER
   --wckey TEXT
   --wrap TEXT
"""

PBS_SOURCE = (
    "qsub(1B) of PBS Professional, https://github.com/openpbs/openpbs/blob/master/doc/man1/qsub.1B; "
    "what ALCF asks for besides: https://docs.alcf.anl.gov/running-jobs/"
)
PBS = """
-a DATE
-A NAME
-c TEXT
-C TEXT
-e PATH
-f -
-h -
-I -
-j JOIN
-J RANGE
-k KEEP
-l RESOURCES
-m EVENTS
-M TEXT
-N JOBNAME
-o PATH
-p PRIORITY
-P NAME
-q NAME
-r RERUN
-R REMOVE
-S PATH
-u TEXT
-v TEXT
-V -
-W ATTRIBUTES
-X -
-z -
"""

COBALT_SOURCE = (
    "qsub of Cobalt 1, OPTIONS DEFINITIONS; https://github.com/ido/cobalt/blob/master/src/clients/POSIX/qsub.py, "
    "man/POSIX/qsub.1"
)
COBALT = """
-d --debug -
-v --verbose -
-h --held -
   --preemptable -
   --run_project -
   --disable_preboot -
-I --interactive -
-n --nodecount COUNT
   --proccount COUNT
-A --project NAME
   --cwd PATH
-q --queue NAME
-M --notify TEXT
   --env ENVIRONMENT
-t --time MINUTES
-u --umask UMASK
-O --outputprefix PATH
-e --error PATH
-o --output PATH
-i --inputfile PATH
   --debuglog PATH
   --dependencies JOBS
   --attrs ATTRS
   --user_list --run_users TEXT
   --jobname TEXT
   --mode MODE
"""
