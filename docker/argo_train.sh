#!/usr/bin/env bash
# Submits a training to Argo Workflows: the config file is sent with it, the run directory is in a volume, and a pod that was
# preempted is restarted and resumes.
#   argo_train.sh CONFIG --image IMAGE --claim PVC [options]
# CONFIG       a config file here, as for 'hpcckpt train -c'; what it reads has to be in the image or in the volume (/runs)
# --image      where the cluster finds the image: REGISTRY/hpcckpt:VERSION
# --claim      the PersistentVolumeClaim that holds the runs
# --run        the run directory in it; default: the name of CONFIG without its suffix. The same name resumes that run
# --ranks      default 1
# --cpus       for all ranks together; default: as many as ranks
# --memory     for all ranks together, /dev/shm included; default 4Gi
# --shm        the size of /dev/shm; default 512Mi
# --retries    how often a preempted or lost pod is restarted; default 20
# --grace      seconds between SIGTERM and SIGKILL; default 300
# --namespace  default: the one of your context
# --dry-run    print the workflow, submit nothing
# It is submitted by 'argo', else by 'kubectl', whichever is on the PATH.
set -euo pipefail
# shellcheck source=docker/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

config='' run='' cpus='' namespace=''
declare -A value=([IMAGE]='' [CLAIM]='' [RANKS]=1 [MEMORY]=4Gi [SHM]=512Mi [RETRIES]=20 [GRACE]=300)
while [ $# -gt 0 ]; do
    case $1 in
        --image | --claim | --ranks | --memory | --shm | --retries | --grace)
            name=${1#--}
            value[${name^^}]=$(value_of "$@") || exit
            shift
            ;;
        --run) run=$(value_of "$@") || exit; shift ;;
        --cpus) cpus=$(value_of "$@") || exit; shift ;;
        --namespace) namespace=$(value_of "$@") || exit; shift ;;
        --dry-run) DRY_RUN=1 ;;
        -h | --help) usage; exit ;;
        -*) misused "what is '$1'?" ;;
        *) [ -z "$config" ] || misused "one config, please: '$config' or '$1'?"; config=$1 ;;
    esac
    shift
done

# must_match OPTION VALUE REGULAR_EXPRESSION EXAMPLE
must_match() { [[ $2 =~ ^($3)$ ]] || misused "--$1 '$2' is not like $4"; }
[ -n "$config" ] || misused "which config?"
[ -r "$config" ] || die "$config cannot be read"
[ -n "${value[IMAGE]}" ] || misused "which image? --image REGISTRY/$(default_image)"
[ -n "${value[CLAIM]}" ] || misused "which volume holds the runs? --claim PVC"
check_image "${value[IMAGE]}"
must_match claim "${value[CLAIM]}" '[a-z0-9]([a-z0-9.-]*[a-z0-9])?' my-claim
for name in ranks retries grace; do must_match "$name" "${value[${name^^}]}" '[1-9][0-9]*' 4; done
for name in memory shm; do must_match "$name" "${value[${name^^}]}" '[1-9][0-9]*(Mi|Gi|Ti|M|G|T)?' 4Gi; done
file=${config##*/}
value[RUN]=${run:-${file%.*}}
must_match run "${value[RUN]}" '[A-Za-z0-9][A-Za-z0-9._/-]*' mnist/lenet5
[[ /${value[RUN]}/ != */../* ]] || misused "--run '${value[RUN]}' leaves the volume"
value[CPUS]=${cpus:-${value[RANKS]}}
must_match cpus "${value[CPUS]}" '[1-9][0-9]*' 4
value[THREADS]=$((value[CPUS] / value[RANKS] > 0 ? value[CPUS] / value[RANKS] : 1))
[ -z "$namespace" ] || must_match namespace "$namespace" '[a-z0-9]([a-z0-9-]*[a-z0-9])?' my-team
# Argo treats two opening braces in the file as one of its variables, and accepts no file larger than a megabyte.
if grep -n '{{' "$config" >&2; then die "$config has '{{' in it, which means something to Argo: put a blank between them"; fi
[ "$(wc -c <"$config")" -le 500000 ] || die "$config is too large to be sent with a workflow"
if LC_ALL=C grep -q $'[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]' "$config"; then die "$config has control characters in it"; fi

# The values are inserted before the config: text that looks like @NAME@ in the config stays unchanged.
filled() {
    local text name line
    text=$(cat "$ROOT/docker/argo-workflow.yaml")
    for name in "${!value[@]}"; do text=${text//"@$name@"/"${value[$name]}"}; done
    while IFS= read -r line; do
        if [[ $line =~ ^(\ *)@CONFIG@$ ]]; then
            line=$(sed "s/^/${BASH_REMATCH[1]}/" "$config") # in a variable: the last line may lack a newline
        fi
        printf '%s\n' "$line"
    done <<<"$text"
}

workflow=$(filled)
if [ "$DRY_RUN" = 1 ]; then
    printf '%s\n' "$workflow"
elif command -v argo >/dev/null 2>&1; then
    argo submit ${namespace:+--namespace "$namespace"} - <<<"$workflow"
elif command -v kubectl >/dev/null 2>&1; then
    kubectl create ${namespace:+--namespace "$namespace"} -f - <<<"$workflow"
else
    die "there is neither argo nor kubectl on the PATH; --dry-run prints the workflow"
fi
